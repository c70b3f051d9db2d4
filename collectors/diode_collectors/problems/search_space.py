"""Choice of a template's configs that a sweep times."""

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
"""Kinds with a random part, which have a count and a seed."""
_COUNTED = re.compile(rf"({'|'.join(DRAWN)}):(\d+)")
_LISTS: tuple[Literal["VENDOR"], Literal["DEFAULT"], Literal["EXHAUSTIVE"]] = ("VENDOR", "DEFAULT", "EXHAUSTIVE")
KNOWN = (
    "DEFAULT, EXHAUSTIVE, SAMPLE:N for the DEFAULT ones and random others of EXHAUSTIVE, such as SAMPLE:72, GUIDED:N"
    " for those that --guide names and random others, or VENDOR for the vendor's kernels alone"
)
TMA_SHARE = 4
"""Divisor for the sample of a persistent-TMA template, which has fewer configs to choose from."""


@dataclass(frozen=True)
class SearchSpace:
    """The search space of a sweep.

    ``DEFAULT`` and ``EXHAUSTIVE`` are Inductor's lists; ``VENDOR`` has no template kernel. ``SAMPLE:N`` is all of
    ``DEFAULT``, which a user's compile would try, and random others of ``EXHAUSTIVE``, up to N configs of a template; a
    seed draws them. In ``GUIDED:N`` a guide names up to half of the configs, and the others are drawn.
    """

    kind: Kind = "DEFAULT"
    sample: int | None = None
    """Number of configs of a template to time; only for a sampled or guided space."""

    def __post_init__(self) -> None:
        """Reject an empty sample, and a count where none belongs.

        Raises:
            SettingsError: the count is wrong.
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
            SettingsError: the search space is unknown.
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
        """Return the text that ``parse`` takes."""
        return self.kind if self.sample is None else f"{self.kind}:{self.sample}"

    @property
    def size(self) -> float:
        """Number of configs of a template: infinite for all, less than 0 if even the DEFAULT ones are left out."""
        return {"VENDOR": -1.0, "DEFAULT": 0.0, "EXHAUSTIVE": math.inf}.get(self.kind, float(self.sample or 0))

    @property
    def is_vendor(self) -> bool:
        """True if only vendor kernels are timed, so that nothing is compiled."""
        return self.kind == "VENDOR"

    @property
    def is_drawn(self) -> bool:
        """True if the configs are drawn, so that the seed matters."""
        return self.sample is not None

    @property
    def tma_sample(self) -> int:
        """Number of configs of a persistent-TMA template in a sample."""
        return (self.sample or 0) // TMA_SHARE

    @property
    def listed(self) -> Literal["DEFAULT", "EXHAUSTIVE"]:
        """Return the list to ask Inductor for. Samples are drawn from the exhaustive list."""
        return "DEFAULT" if self.kind in {"DEFAULT", "VENDOR"} else "EXHAUSTIVE"


def drawn_place(what: object, key: bytes = b"") -> bytes:
    """Return the place of a value in an order drawn by ``key`` (at most 64 bytes), independent of the other values."""
    return blake2b(repr(what).encode(), key=key, digest_size=8).digest()
