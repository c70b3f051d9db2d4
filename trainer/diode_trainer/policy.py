"""Choose which candidates to keep, and how many, from predicted times.

Inductor compiles and benchmarks what is kept, so every config costs compile time, except a vendor kernel. ``select``
depends on predictions only, is deterministic, and is idempotent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from diode_store.errors import SettingsError
from diode_trainer.uncertainty import Outlook, tried_in_turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from diode_trainer.card import Calibration


ANY_RATIO = 1e9


class Mode(StrEnum):
    """Amount of benchmarking left to Inductor."""

    TOP_K = "top_k"
    """Keep a few; Inductor benchmarks them and takes the fastest."""
    ZERO = "zero"
    """Keep exactly one; nothing is benchmarked."""
    ADAPTIVE = "adaptive"
    """Keep one if the model is sure, otherwise as many as are worth benchmarking."""


@dataclass(frozen=True)
class Policy:
    """Rule for keeping ranked candidates.

    ``performance_threshold`` is a ratio to the best predicted time: 1.1 keeps candidates within 10% of it. In adaptive
    mode ``kernel_price`` is the relative gain that makes a kernel worth benchmarking; None takes the model's own.
    """

    top_k_configs: int = 3
    performance_threshold: float = 1.1
    mode: Mode = Mode.TOP_K
    kernel_price: float | None = None
    together: bool = True
    """Prefer candidates that complement the first one over the next fastest, if members' predictions are known."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: fewer than one config, a threshold that is not a finite number of at least 1, or a price that
                is not a finite number above 0.
        """
        if isinstance(self.top_k_configs, bool) or not isinstance(self.top_k_configs, int) or self.top_k_configs < 1:
            raise SettingsError(f"top_k_configs must be a whole number of at least 1, not {self.top_k_configs!r}")
        threshold = self.performance_threshold
        if not isinstance(threshold, (int, float)) or not math.isfinite(threshold) or threshold < 1:
            raise SettingsError(f"performance_threshold must be a ratio of at least 1.0, not {threshold!r}")
        price = self.kernel_price
        if price is not None and (not isinstance(price, (int, float)) or not math.isfinite(price) or price <= 0):
            raise SettingsError(f"kernel_price must be a share above 0, such as 0.01 for 1%, not {price!r}")

    @property
    def benchmarking(self) -> Policy:
        """Policy that does not rely on predictions: keep a few, including a template and the vendor kernel."""
        return replace(self, mode=Mode.TOP_K, top_k_configs=max(self.top_k_configs, 2), performance_threshold=ANY_RATIO)

    def near(self, spread: Spread | None) -> Policy:
        """Return the policy on a near device, for a ``spread`` on that device.

        Adaptive mode uses the spread, which is wider there. Without a calibrated spread predictions decide nothing.
        """
        is_calibrated = spread is not None and spread.calibration is not None
        return self if self.mode is Mode.ADAPTIVE and is_calibrated else self.benchmarking

    @property
    def key(self) -> str:
        """Identity of the policy in a cache key."""
        price = "model's" if self.kernel_price is None else repr(float(self.kernel_price))
        at = f"/{price}" if self.mode is Mode.ADAPTIVE else ""
        how = "" if self.together else "/by rank"
        return f"{self.mode}/{self.top_k_configs}/{float(self.performance_threshold)!r}{at}{how}"


@dataclass(frozen=True, eq=False)
class Spread:
    """Members' predictions for f of the candidates, including the best and a vendor kernel."""

    indices: NDArray[np.intp]
    """Indices of those candidates, shape (f,)."""
    member_logs: NDArray[np.float32]
    """log(microseconds), shape (E, f)."""
    calibration: Calibration | None
    """Calibration of the spread; None if unknown, as for a model without folds."""
    p_within_2pct: float | None = None
    """Probability that the best is within 2% of the best of a longer list, if these candidates remain from one; else
    None.
    """
    compile_s: NDArray[np.float32] | None = None
    """Compile time of each candidate in seconds, shape (f,); None if all are quick."""

    def outlook(self, is_vendor: NDArray[np.bool_]) -> Outlook | None:
        """Return the distribution of the times, if calibrated; ``is_vendor`` covers all candidates, shape (n,)."""
        if self.calibration is None:
            return None
        return Outlook(self.member_logs, is_vendor[self.indices], self.calibration)

    def how_sure(self, is_vendor: NDArray[np.bool_]) -> float | None:
        """Return the probability that the best is within 2% of the best of all; None if unknown."""
        if self.p_within_2pct is not None:
            return self.p_within_2pct
        outlook = self.outlook(is_vendor)
        return None if outlook is None else outlook.p_within_2pct

    def charged(self, is_vendor: NDArray[np.bool_], cost_us: float) -> Spread:
        """Return the spread with a cost added to vendor kernels; ``is_vendor`` covers all candidates, shape (n,)."""
        logs = np.logaddexp(self.member_logs, np.float32(math.log(cost_us)))
        return replace(self, member_logs=np.where(is_vendor[self.indices], logs, self.member_logs))

    @staticmethod
    def joined(parts: Sequence[tuple[int, Spread]]) -> Spread:
        """Join the spreads of concatenated lists, each with its offset in the whole list.

        The joined spread takes the calibration of the longest list.
        """
        indices = np.concatenate([before + spread.indices for before, spread in parts])
        logs = np.concatenate([spread.member_logs for _, spread in parts], 1)
        spreads = [spread for _, spread in parts]
        longest = max(spreads, key=lambda spread: len(spread.indices))
        slow = any(spread.compile_s is not None for spread in spreads)
        seconds = np.concatenate([spread._seconds() for spread in spreads]) if slow else None  # noqa: SLF001 - its own
        return Spread(indices, logs, longest.calibration, compile_s=seconds)

    def among(self, positions: Sequence[int]) -> Spread | None:
        """Return the spread of the candidates at ``positions``, renumbered; None if it has none of them."""
        place = {position: i for i, position in enumerate(positions)}
        there = [i for i, index in enumerate(self.indices.tolist()) if index in place]
        if not there:
            return None
        indices = np.array([place[index] for index in self.indices[there].tolist()], dtype=np.intp)
        seconds = None if self.compile_s is None else self.compile_s[there]
        return Spread(indices, self.member_logs[:, there], self.calibration, compile_s=seconds)

    def _seconds(self) -> NDArray[np.float32]:
        return np.zeros(len(self.indices), dtype=np.float32) if self.compile_s is None else self.compile_s

    def left(self, positions: Sequence[int], is_vendor: NDArray[np.bool_]) -> Spread | None:
        """Return ``among`` for ``positions``, with the confidence of the whole list.

        Recomputing the confidence on the subset would overstate it. It is dropped if the first choice is not in the
        subset.
        """
        among = self.among(positions)
        first = int(self.indices[self.member_logs.mean(0).argmin()])
        if among is None or first not in positions:
            return among
        return replace(among, p_within_2pct=self.how_sure(is_vendor))


@dataclass(frozen=True)
class KeptCandidates:
    """Candidates to keep, fastest predicted first, and the reason; no index if none can run."""

    indices: tuple[int, ...]
    reason: str
    is_final: bool = False
    """True if no other choice, of any origin, may be benchmarked against them."""
    p_within_2pct: float | None = None
    """Probability that the first is within 2% of the best candidate; None if unknown."""


def select(
    predicted_us: NDArray[np.float64],
    is_vendor: NDArray[np.bool_],
    policy: Policy,
    spread: Spread | None = None,
    *,
    preliminary: bool = False,
) -> KeptCandidates:
    """Choose among n candidates.

    ``top_k_configs`` of the candidates within the threshold are kept: the fastest and, with a ``spread``, those that
    complement it, else the next fastest. Only the best variant of a vendor kernel counts. If only templates are chosen,
    the vendor kernel is kept as well, however slow it looks. Timing the vendor kernel costs no compilation, bounds the
    price of a wrong prediction, and is a fallback if every template fails. A candidate among the first
    ``top_k_configs`` that not all members scored is kept, because corrections put it there.

    In adaptive mode the first is kept alone, unless the expected gain of benchmarking others exceeds its cost; the best
    vendor kernel comes first among these. Without a calibrated ``spread`` adaptive mode keeps what top-k mode does.

    Args:
        predicted_us: predicted times in microseconds, shape (n,); infinite or NaN for candidates that cannot run.
        is_vendor: mask of the vendor kernels, shape (n,).
        policy: rule for keeping candidates.
        spread: predictions of the members.
        preliminary: True if more candidates may follow, so that even a single one may be benchmarked. The confidence of
            such a selection is not used.
    """
    usable = np.isfinite(predicted_us)
    if not usable.any():
        vendor = np.flatnonzero(is_vendor)[:1]
        reason = "no prediction: vendor kept" if len(vendor) else "no candidate fits"
        return KeptCandidates(tuple(vendor.tolist()), reason, policy.mode is Mode.ZERO)
    outlook = spread.outlook(is_vendor) if spread is not None and policy.mode is Mode.ADAPTIVE else None
    if spread is None or outlook is None:
        sure = None if spread is None or preliminary else spread.how_sure(is_vendor)
        return replace(_select_few(predicted_us, is_vendor, usable, policy, spread), p_within_2pct=sure)
    sure = outlook.p_within_2pct if spread.p_within_2pct is None else spread.p_within_2pct
    worth = outlook.worth_timing(policy.kernel_price, alone_is_free=not preliminary, compile_s=spread.compile_s)
    indices = spread.indices[worth].tolist()
    count = "it is kept alone" if len(indices) == 1 else f"{len(indices)} are worth benchmarking"
    reason = f"{_winner(is_vendor, indices)}, {sure:.0%} sure to be within 2% of the best; {count}"
    return KeptCandidates(tuple(indices), reason, len(indices) == 1, sure)


def _select_few(
    predicted_us: NDArray[np.float64],
    is_vendor: NDArray[np.bool_],
    usable: NDArray[np.bool_],
    policy: Policy,
    spread: Spread | None,
) -> KeptCandidates:
    vendors = _fastest_first(predicted_us, usable & is_vendor)
    choosable = usable & ~is_vendor
    choosable[vendors[:1]] = True
    limit = predicted_us[choosable].min() * policy.performance_threshold
    close = _fastest_first(predicted_us, choosable & (predicted_us <= limit)).tolist()
    first = close[:1] if policy.mode is Mode.ZERO else _choose_few(close, is_vendor, policy, spread)
    beside = [] if policy.mode is Mode.ZERO else [vendor for vendor in vendors[:1].tolist() if vendor not in first]
    kept = tuple(sorted((*first, *beside), key=predicted_us.__getitem__))
    reason = _winner(is_vendor, kept) + _why(len(first), len(beside), policy)
    return KeptCandidates(kept, reason, policy.mode is Mode.ZERO)


def _choose_few(close: Sequence[int], is_vendor: NDArray[np.bool_], policy: Policy, spread: Spread | None) -> list[int]:
    """Return ``top_k_configs`` of the candidates ``close``, which are in the order of their predicted times."""
    count, by_rank = policy.top_k_configs, np.arange(len(close))
    among = spread.among(close) if spread is not None and policy.together and 1 < count < len(close) else None
    if among is None:
        return list(close[:count])
    not_scored = np.setdiff1d(by_rank[:count], among.indices)
    left = count - len(not_scored)
    may_be_late = is_vendor[np.take(close, among.indices)]
    in_turn = tried_in_turn(by_rank, among.indices, among.member_logs, left, also=may_be_late)
    places = [*not_scored, *in_turn[~np.isin(in_turn, not_scored)][:left]]
    return [close[place] for place in sorted(places)]


def _winner(is_vendor: NDArray[np.bool_], kept: Sequence[int]) -> str:
    return ("the vendor's kernel" if is_vendor[kept[0]] else "a template") + " is predicted fastest"


def _fastest_first(predicted_us: NDArray[np.float64], wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the wanted candidates, fastest first; ties keep their order."""
    indices = np.flatnonzero(wanted)
    return indices[np.argsort(predicted_us[indices], kind="stable")]


def _why(first: int, beside: int, policy: Policy) -> str:
    if policy.mode is Mode.ZERO:
        return " and is kept alone"
    threshold = f"{policy.performance_threshold:g}"
    alone = first == 1 and policy.top_k_configs > 1
    within = "" if policy.performance_threshold >= ANY_RATIO else f" within {threshold}"
    lead = f" and leads by more than {threshold}" if alone else f"; {first} kept{within}"
    return f"{lead}; the vendor's kernel is kept too" if beside else lead


def make_policy(
    mode: Mode | str | None = None,
    top_k_configs: int | None = None,
    performance_threshold: float | None = None,
    kernel_price: float | None = None,
    *,
    knows_its_spread: bool,
) -> Policy:
    """Return the policy for the hook's options; None is an option that was not given.

    Without a mode, the given option implies the mode. Without options the mode is adaptive if the model is calibrated.

    Raises:
        SettingsError: an option has an unusable value, or options of two modes are given without a mode.
    """
    if mode is None:
        asks_for_top_k = top_k_configs is not None or performance_threshold is not None
        if asks_for_top_k and kernel_price is not None:
            raise SettingsError("kernel_price is for adaptive mode, the other options for top_k mode; name a mode")
        is_adaptive = kernel_price is not None or (knows_its_spread and not asks_for_top_k)
        mode = Mode.ADAPTIVE if is_adaptive else Mode.TOP_K
    given = {"top_k_configs": top_k_configs, "performance_threshold": performance_threshold}
    return Policy(
        mode=parse_mode(mode),
        kernel_price=kernel_price,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
    )


def parse_mode(mode: Mode | str) -> Mode:
    """Return the mode called ``mode``.

    Raises:
        SettingsError: the mode is unknown.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise SettingsError(f"mode must be one of {', '.join(Mode)}, not {mode!r}") from None
