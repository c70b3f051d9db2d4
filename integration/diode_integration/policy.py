"""How many candidates to keep, and which: pure arithmetic on predicted times.

What is kept is what Inductor goes on to compile and benchmark, so every config costs compile time; a vendor's
kernel costs none. ``select`` looks at predictions only, is deterministic, and selecting twice changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Mode(StrEnum):
    """How much is left to Inductor's benchmarking."""

    TOP_K = "top_k"
    """Keep a few; Inductor benchmarks them and takes the fastest."""
    ZERO = "zero"
    """Keep exactly one; nothing is benchmarked."""


@dataclass(frozen=True)
class Policy:
    """What to keep of the ranked candidates.

    ``performance_threshold`` is a ratio to the best predicted time: 1.1 keeps what is within 10% of it.
    """

    top_k_configs: int = 3
    performance_threshold: float = 1.1
    mode: Mode = Mode.TOP_K

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: fewer than one config, or a threshold that is not a finite number of at least 1.
        """
        if isinstance(self.top_k_configs, bool) or not isinstance(self.top_k_configs, int) or self.top_k_configs < 1:
            raise SettingsError(f"top_k_configs must be a whole number of at least 1, not {self.top_k_configs!r}")
        threshold = self.performance_threshold
        if not isinstance(threshold, (int, float)) or not math.isfinite(threshold) or threshold < 1:
            raise SettingsError(f"performance_threshold must be a ratio of at least 1.0, not {threshold!r}")

    @property
    def key(self) -> str:
        """What distinguishes the policy in a cache key."""
        return f"{self.mode}/{self.top_k_configs}/{float(self.performance_threshold)!r}"


@dataclass(frozen=True)
class KeptCandidates:
    """Which candidates to keep, fastest predicted first, and why; no index at all when none can run."""

    indices: tuple[int, ...]
    reason: str


def select(
    predicted_us: NDArray[np.float64],
    is_vendor: NDArray[np.bool_],
    policy: Policy,
) -> KeptCandidates:
    """Choose among n candidates.

    Of those within the threshold, the first ``top_k_configs`` are kept, a vendor's kernel being a candidate like
    any other, but only the best of a vendor's variants. When only templates are among them, it is kept beside them,
    however slow it looks: timing it costs no compilation, it bounds the price of a wrong prediction, and should every
    template fail on the device, it is what the compile goes on with.

    Args:
        predicted_us: predicted times in microseconds, shape (n,); infinite or NaN for what cannot run.
        is_vendor: which are a vendor library's kernels, shape (n,).
        policy: how many, and how far from the best.
    """
    usable = np.isfinite(predicted_us)
    if not usable.any():
        vendor = np.flatnonzero(is_vendor)[:1]
        return KeptCandidates(
            tuple(vendor.tolist()), "no prediction: vendor kept" if len(vendor) else "no candidate fits"
        )
    vendors = _fastest_first(predicted_us, usable & is_vendor)
    choosable = usable & ~is_vendor
    choosable[vendors[:1]] = True
    limit = predicted_us[choosable].min() * policy.performance_threshold
    close = _fastest_first(predicted_us, choosable & (predicted_us <= limit))
    first = close[: 1 if policy.mode is Mode.ZERO else policy.top_k_configs].tolist()
    beside = [] if policy.mode is Mode.ZERO else [vendor for vendor in vendors[:1].tolist() if vendor not in first]
    kept = (*first, *beside)
    winner = "the vendor's kernel" if is_vendor[kept[0]] else "a template"
    return KeptCandidates(kept, f"{winner} is predicted fastest{_why(len(first), len(beside), policy)}")


def _fastest_first(predicted_us: NDArray[np.float64], wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the wanted candidates; those that tie keep their order."""
    indices = np.flatnonzero(wanted)
    return indices[np.argsort(predicted_us[indices], kind="stable")]


def _why(first: int, beside: int, policy: Policy) -> str:
    if policy.mode is Mode.ZERO:
        return " and is kept alone"
    threshold = f"{policy.performance_threshold:g}"
    alone = first == 1 and policy.top_k_configs > 1
    lead = f" and leads by more than {threshold}" if alone else f"; {first} kept within {threshold}"
    return f"{lead}; the vendor's kernel is kept too" if beside else lead


def parse_mode(mode: Mode | str) -> Mode:
    """Return the mode called ``mode``.

    Raises:
        SettingsError: it is unknown.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise SettingsError(f"mode must be one of {', '.join(Mode)}, not {mode!r}") from None
