"""Which of a template's configs a sweep times."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from diode_store.errors import SettingsError

Kind = Literal["VENDOR", "DEFAULT", "EXHAUSTIVE", "SAMPLE", "GUIDED"]
GUIDED: Literal["GUIDED"] = "GUIDED"
DRAWN: tuple[Literal["SAMPLE"], Literal["GUIDED"]] = ("SAMPLE", GUIDED)
"""The kinds that chance has a part in, so that they have a count and a seed."""
_COUNTED = re.compile(rf"({'|'.join(DRAWN)}):(\d+)")
_LISTS: tuple[Literal["VENDOR"], Literal["DEFAULT"], Literal["EXHAUSTIVE"]] = ("VENDOR", "DEFAULT", "EXHAUSTIVE")
KNOWN = (
    "DEFAULT, EXHAUSTIVE, SAMPLE:N for the DEFAULT ones and random others of EXHAUSTIVE, such as SAMPLE:72, GUIDED:N"
    " for those that --guide names and random others, or VENDOR for the vendor's kernels alone"
)
TMA_SHARE = 4
"""A sample of N takes one in so many of N from a persistent-TMA template, which has fewer configs to choose from."""


@dataclass(frozen=True)
class SearchSpace:
    """``DEFAULT`` and ``EXHAUSTIVE`` are Inductor's lists; ``VENDOR`` has no kernel of a template.

    ``SAMPLE:N`` is all of ``DEFAULT``, which is what a user's compile would try, and random others of ``EXHAUSTIVE``,
    up to N configs a template; they are drawn by seed. Of ``GUIDED:N`` up to half are named by a guide, and the others
    are drawn.
    """

    kind: Kind = "DEFAULT"
    sample: int | None = None
    """How many configs of a template are timed; only of a sample or a guided one."""

    def __post_init__(self) -> None:
        """Refuse an empty sample, and a count where none belongs.

        Raises:
            SettingsError: one of these.
        """
        is_counted = self.kind in DRAWN
        if is_counted and not self.sample:
            raise SettingsError(f"{self.kind}:N needs an N of at least 1, such as {self.kind}:72")
        if not is_counted and self.sample is not None:
            raise SettingsError(f"{self.kind} takes no count; write SAMPLE:{self.sample}")

    @classmethod
    def parse(cls, text: str) -> SearchSpace:
        """Return the search space that ``text`` names.

        Raises:
            SettingsError: it is unknown.
        """
        upper = text.strip().upper()
        for kind in _LISTS:
            if upper == kind:
                return cls(kind)
        match = _COUNTED.fullmatch(upper)
        if match is None:
            raise SettingsError(f"unknown search space {text!r}; expected {KNOWN}")
        return cls(GUIDED if match.group(1) == GUIDED else "SAMPLE", int(match.group(2)))

    def __str__(self) -> str:
        """Return what ``parse`` takes."""
        return self.kind if self.sample is None else f"{self.kind}:{self.sample}"

    @property
    def size(self) -> float:
        """How many configs of a template it asks for: infinite for all, less than 0 for not even the DEFAULT ones."""
        return {"VENDOR": -1.0, "DEFAULT": 0.0, "EXHAUSTIVE": math.inf}.get(self.kind, float(self.sample or 0))

    @property
    def is_vendor(self) -> bool:
        """Whether nothing but the vendor's kernels is timed, so that nothing is compiled."""
        return self.kind == "VENDOR"

    @property
    def is_drawn(self) -> bool:
        """Whether chance decides which configs are timed, so that the seed matters."""
        return self.sample is not None

    @property
    def tma_sample(self) -> int:
        """How many configs of a persistent-TMA template a sample takes."""
        return (self.sample or 0) // TMA_SHARE

    @property
    def listed(self) -> Literal["DEFAULT", "EXHAUSTIVE"]:
        """Return what Inductor is asked to list; what is drawn is drawn from the exhaustive list."""
        return "DEFAULT" if self.kind in {"DEFAULT", "VENDOR"} else "EXHAUSTIVE"


def drawn_place(what: object, key: bytes = b"") -> bytes:
    """Return where something is in an order that is drawn by ``key`` (at most 64 bytes), whatever else is in it."""
    return blake2b(repr(what).encode(), key=key, digest_size=8).digest()
