"""Which of a template's configs a sweep times."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from diode_store.errors import SettingsError

Kind = Literal["DEFAULT", "EXHAUSTIVE", "SAMPLE"]
_SAMPLE = re.compile(r"SAMPLE:(\d+)")
KNOWN = "DEFAULT, EXHAUSTIVE, or SAMPLE:N for the DEFAULT ones and random others of EXHAUSTIVE, such as SAMPLE:72"
TMA_SHARE = 4
"""A sample of N takes one in so many of N from a persistent-TMA template, which has fewer configs to choose from."""


@dataclass(frozen=True)
class SearchSpace:
    """``DEFAULT`` and ``EXHAUSTIVE`` are Inductor's lists.

    ``SAMPLE:N`` is ``DEFAULT``, which is what a user's compile would try, and random others of ``EXHAUSTIVE``, up to
    N configs a template; they are drawn by seed.
    """

    kind: Kind = "DEFAULT"
    sample: int | None = None
    """How many configs of a template are timed; only of a sample."""

    def __post_init__(self) -> None:
        """Refuse an empty sample, and a count where none belongs.

        Raises:
            SettingsError: one of these.
        """
        if self.kind == "SAMPLE" and not self.sample:
            raise SettingsError("SAMPLE:N needs an N of at least 1, such as SAMPLE:72")
        if self.kind != "SAMPLE" and self.sample is not None:
            raise SettingsError(f"{self.kind} takes no count; write SAMPLE:{self.sample}")

    @classmethod
    def parse(cls, text: str) -> SearchSpace:
        """Return the search space that ``text`` names.

        Raises:
            SettingsError: it is unknown.
        """
        upper = text.strip().upper()
        if upper == "DEFAULT":
            return cls("DEFAULT")
        if upper == "EXHAUSTIVE":
            return cls("EXHAUSTIVE")
        match = _SAMPLE.fullmatch(upper)
        if match is None:
            raise SettingsError(f"unknown search space {text!r}; expected {KNOWN}")
        return cls("SAMPLE", int(match.group(1)))

    def __str__(self) -> str:
        """Return what ``parse`` takes."""
        return self.kind if self.sample is None else f"{self.kind}:{self.sample}"

    @property
    def size(self) -> float:
        """How many configs of a template it asks for; infinite for all."""
        return {"DEFAULT": 0.0, "EXHAUSTIVE": math.inf}.get(self.kind, float(self.sample or 0))

    @property
    def tma_sample(self) -> int:
        """How many configs of a persistent-TMA template a sample takes."""
        return (self.sample or 0) // TMA_SHARE

    @property
    def listed(self) -> Literal["DEFAULT", "EXHAUSTIVE"]:
        """Return what Inductor is asked to list; a sample is drawn from the exhaustive list."""
        return "DEFAULT" if self.kind == "DEFAULT" else "EXHAUSTIVE"
