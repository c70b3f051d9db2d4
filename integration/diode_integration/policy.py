"""How many candidates to keep, and which: pure arithmetic on predicted times.

What is kept is what Inductor goes on to compile and benchmark, so every config costs compile time; a vendor's
kernel costs none. ``select`` looks at predictions only, is deterministic, and selecting twice changes nothing.
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
    """How much is left to Inductor's benchmarking."""

    TOP_K = "top_k"
    """Keep a few; Inductor benchmarks them and takes the fastest."""
    ZERO = "zero"
    """Keep exactly one; nothing is benchmarked."""
    ADAPTIVE = "adaptive"
    """Keep one where the model is sure, and where it is not as many as are worth benchmarking."""


@dataclass(frozen=True)
class Policy:
    """What to keep of the ranked candidates.

    ``performance_threshold`` is a ratio to the best predicted time: 1.1 keeps what is within 10% of it. In adaptive
    mode ``kernel_price`` is the relative gain for which a kernel is worth benchmarking, the model's own when None.
    """

    top_k_configs: int = 3
    performance_threshold: float = 1.1
    mode: Mode = Mode.TOP_K
    kernel_price: float | None = None
    together: bool = True
    """Whether those are kept that go best with the first, where members say so, and not the next fastest."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            SettingsError: fewer than one config, a threshold that is not a finite number of at least 1, or a price
                that is not a finite number above 0.
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
        """What is kept where predictions decide nothing: a few, a template and the vendor's kernel among them."""
        return replace(self, mode=Mode.TOP_K, top_k_configs=max(self.top_k_configs, 2), performance_threshold=ANY_RATIO)

    @property
    def key(self) -> str:
        """What distinguishes the policy in a cache key."""
        price = "model's" if self.kernel_price is None else repr(float(self.kernel_price))
        at = f"/{price}" if self.mode is Mode.ADAPTIVE else ""
        how = "" if self.together else "/by rank"
        return f"{self.mode}/{self.top_k_configs}/{float(self.performance_threshold)!r}{at}{how}"


@dataclass(frozen=True, eq=False)
class Spread:
    """What the members of a model say of f of the candidates, among them the best and a vendor's."""

    indices: NDArray[np.intp]
    """Which candidates, shape (f,)."""
    member_logs: NDArray[np.float32]
    """log(microseconds), shape (E, f)."""
    calibration: Calibration | None
    """What it is worth; None where nobody knows, as for a model without folds or a device that it does not know."""
    p_within_2pct: float | None = None
    """How likely the best of them is within 2% of the best of a longer list, of which these are left; None when none
    was left out."""

    def outlook(self, is_vendor: NDArray[np.bool_]) -> Outlook | None:
        """Return how their times may turn out, if it is calibrated; ``is_vendor`` is of all candidates, shape (n,)."""
        if self.calibration is None:
            return None
        return Outlook(self.member_logs, is_vendor[self.indices], self.calibration)

    def how_sure(self, is_vendor: NDArray[np.bool_]) -> float | None:
        """Return how likely the best is within 2% of the best of all; None if nobody knows. ``is_vendor`` as above."""
        if self.p_within_2pct is not None:
            return self.p_within_2pct
        outlook = self.outlook(is_vendor)
        return None if outlook is None else outlook.p_within_2pct

    def charged(self, is_vendor: NDArray[np.bool_], cost_us: float) -> Spread:
        """Return the spread with a cost counted for a vendor's kernels; ``is_vendor`` is of all, shape (n,)."""
        logs = np.logaddexp(self.member_logs, np.float32(math.log(cost_us)))
        return replace(self, member_logs=np.where(is_vendor[self.indices], logs, self.member_logs))

    @staticmethod
    def joined(parts: Sequence[tuple[int, Spread]]) -> Spread:
        """Return one spread of several lists end to end, each with the number of candidates before it."""
        indices = np.concatenate([before + spread.indices for before, spread in parts])
        logs = np.concatenate([spread.member_logs for _, spread in parts], 1)
        return Spread(indices, logs, parts[0][1].calibration)

    def among(self, positions: Sequence[int]) -> Spread | None:
        """Return the spread of the candidates at ``positions``, as numbered there; None if it has none of them."""
        place = {position: i for i, position in enumerate(positions)}
        there = [i for i, index in enumerate(self.indices.tolist()) if index in place]
        if not there:
            return None
        indices = np.array([place[index] for index in self.indices[there].tolist()], dtype=np.intp)
        return Spread(indices, self.member_logs[:, there], self.calibration)

    def left(self, positions: Sequence[int], is_vendor: NDArray[np.bool_]) -> Spread | None:
        """Return ``among``, which remembers how sure the first choice was before the others were left out.

        Without them it would look surer than it is. Where it is no longer there itself, that is forgotten.
        """
        among = self.among(positions)
        first = int(self.indices[self.member_logs.mean(0).argmin()])
        if among is None or first not in positions:
            return among
        return replace(among, p_within_2pct=self.how_sure(is_vendor))


@dataclass(frozen=True)
class KeptCandidates:
    """Which candidates to keep, fastest predicted first, and why; no index at all when none can run."""

    indices: tuple[int, ...]
    reason: str
    is_final: bool = False
    """Whether no other choice, of whatever origin, may be benchmarked against them."""
    p_within_2pct: float | None = None
    """How likely the first is within 2% of the best candidate; None if the model cannot say."""


def select(
    predicted_us: NDArray[np.float64],
    is_vendor: NDArray[np.bool_],
    policy: Policy,
    spread: Spread | None = None,
    *,
    preliminary: bool = False,
) -> KeptCandidates:
    """Choose among n candidates.

    Of those within the threshold ``top_k_configs`` are kept: the first, and with a ``spread`` those that go best with
    it, without one the next. A vendor's kernel is a candidate like any other, but only the best of a vendor's variants.
    When only templates are among them, it is kept beside them, however slow it looks: timing it costs no compilation,
    it bounds the price of a wrong prediction, and should every template fail on the device, it is what the compile goes
    on with. One of the first ``top_k_configs`` that not all members scored is kept: corrections put it there.

    In adaptive mode the first is kept alone, unless benchmarking it against others, the best of a vendor's first, is
    expected to gain more than that costs. Without a calibrated ``spread`` it keeps what top-k mode does.

    Args:
        predicted_us: predicted times in microseconds, shape (n,); infinite or NaN for what cannot run.
        is_vendor: which are a vendor library's kernels, shape (n,).
        policy: how many, and how far from the best.
        spread: what the members of the model say.
        preliminary: whether more candidates may follow, so that even one may have to be benchmarked. Nobody reads how
            sure the model is of such a selection.
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
    indices = spread.indices[outlook.worth_timing(policy.kernel_price, alone_is_free=not preliminary)].tolist()
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
    """Return ``top_k_configs`` of the candidates ``close``, which begin with the fastest, in their order."""
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
    """Return the wanted candidates; those that tie keep their order."""
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
    """Return the policy that the hook's options ask for; None is an option that was not given.

    Without a mode it is that of the option which was given, else adaptive where the model knows how sure it is.

    Raises:
        SettingsError: an option has a value that cannot be used, or options of two modes are given and no mode.
    """
    if mode is None:
        asks_for_top_k = top_k_configs is not None or performance_threshold is not None
        if asks_for_top_k and kernel_price is not None:
            raise SettingsError("kernel_price is of adaptive mode, the other options of top_k mode; name a mode")
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
        SettingsError: it is unknown.
    """
    try:
        return Mode(mode)
    except ValueError:
        raise SettingsError(f"mode must be one of {', '.join(Mode)}, not {mode!r}") from None
