"""The final selection among an op's choices, after all calls for the op.

Inductor may ask its choices hook several times for one op: torch 2.13 lists an addmm's vendor kernels, its Triton
templates and its contiguous variant separately. The hook therefore only drops what cannot
win in any case, which is what saves code generation and compilation, and leaves a ``Mark`` on the rest. Inductor
runs its preprocessing functions on the whole list before it counts the choices, so ``final_selection``, one of
those, sees all marks of the op together and applies the policy to them.

Choices without a mark (C++, CUTLASS, decompose_k …) are left alone, except where nothing may be benchmarked: in
zero mode, and where adaptive mode keeps one alone.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from diode_collectors.inductor.adapter import annotations_of, config_of_ktc
from diode_integration import picking
from diode_integration.listing import vendors_best
from diode_integration.policy import KeptCandidates, Policy, Spread, select
from diode_integration.predictor import SizeRange
from diode_integration.stats import BY_SIMILAR, DecidedBy, Decision, PredictedConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.predictor import Ranking

ANNOTATION = "diode_mark"
"""Key of the mark in a choice's ``annotations``."""

Listener = Callable[[list[Any], list[Any]], None]
"""Is told of each op's choices what there was and what was left of it; it must not raise."""

_registering = threading.Lock()
_listeners: list[Listener] = []


class Owner(Protocol):
    """The handler that left a mark."""

    policy: Policy
    observe: bool

    def settled(self, decision: Decision) -> None:
        """Record a decision."""

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""


@dataclass(frozen=True, eq=False)
class RankedCall:
    """A call of the hook whose candidates the model ranked."""

    owner: Owner
    op: str
    ranking: Ranking
    ktcs: Sequence[KernelTemplateChoice]
    """The candidates, shape (n,), as in the ranking."""
    seconds: float = 0.0
    """What it took to rank them."""


@dataclass(frozen=True, eq=False)
class AbstainedCall:
    """A call of the hook in which the model did not decide."""

    owner: Owner
    decision: Decision

    @property
    def keeps_vendor(self) -> bool:
        """Whether the vendor's kernel is kept alone, instead of stock Inductor choosing."""
        return self.decision.decided_by is DecidedBy.VENDOR

    @property
    def seconds(self) -> float:
        """What it took to find out."""
        return self.decision.seconds


@dataclass(frozen=True, eq=False)
class Mark:
    """Ties a choice to the call that let it through."""

    call: RankedCall | AbstainedCall
    index: int | None = None
    """Which of the ranked candidates it is; None for a stock choice that was only observed."""


def final_selection(choices: list[Any]) -> list[Any]:
    """Apply the policy to all marked choices together; Inductor calls this with each op's choices.

    Never raises and never empties a list.
    """
    left = _selected(choices)
    for listener in tuple(_listeners):
        listener(choices, left)
    return left


def _selected(choices: list[Any]) -> list[Any]:
    picked = picking.settle(choices)
    if picked is not None:
        return picked
    marks = [mark_of(choice) for choice in choices]
    owner = next((mark.call.owner for mark in marks if mark is not None), None)
    if owner is None:
        return choices
    try:
        return _settle(owner, choices, marks) or choices
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        owner.failed(error)
        return choices


def mark_of(choice: Any) -> Mark | None:
    """Return the mark of a choice, if it has one."""
    try:
        found = annotations_of(choice).get(ANNOTATION)
    except Exception:  # noqa: BLE001 - as above; this may be any other hook's object
        return None
    return found if isinstance(found, Mark) else None


def ensure_registered() -> None:
    """Have Inductor call ``final_selection``; again if its preprocessing functions were cleared."""
    with _registering:
        registered = _preprocessing_functions()
        if final_selection not in registered:
            registered.append(final_selection)


def unregister() -> None:
    """Have Inductor no longer call ``final_selection``, unless somebody listens to it; that changes no choice."""
    with _registering:
        registered = _preprocessing_functions()
        if final_selection in registered and not _listeners:
            registered.remove(final_selection)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener`` told of every op's choices, whether a hook is installed or not."""
    _listeners.append(listener)
    was_registered = final_selection in _preprocessing_functions()
    ensure_registered()
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not was_registered:  # a hook that was installed since registers it again when it is called
            unregister()


@contextmanager
def taking_the_first() -> Iterator[None]:
    """Have Inductor take the first of each op's choices, after ``final_selection`` saw all of them, and time none."""

    def first(choices: list[Any]) -> list[Any]:
        return choices[:1]

    ensure_registered()
    functions = _preprocessing_functions()
    functions.append(first)
    try:
        yield
    finally:
        functions.remove(first)


def _preprocessing_functions() -> list[Any]:
    from torch._inductor.select_algorithm import get_algorithm_selector_cache  # at import it would close a cycle

    functions: list[Any] = get_algorithm_selector_cache().preprocessing_fns
    return functions


def _settle(owner: Owner, choices: list[Any], marks: list[Mark | None]) -> list[Any]:
    started = perf_counter()
    calls = list({id(mark.call): mark.call for mark in marks if mark is not None}.values())
    abstained = next((call for call in calls if isinstance(call, AbstainedCall)), None)
    if abstained is not None:
        owner.settled(_timed(abstained.decision, calls, started))
        return _vendors_alone(choices, marks) if abstained.keeps_vendor else choices
    pool = _Pool([call for call in calls if isinstance(call, RankedCall)])
    if owner.observe:
        owner.settled(_timed(pool.decide(pool.everything(), owner)[1], calls, started))
        return choices
    ranked = [(choice, mark) for choice, mark in zip(choices, marks, strict=True) if mark is not None]
    selection, decision = pool.decide([pool.position(mark) for _, mark in ranked], owner)
    owner.settled(_timed(decision, calls, started))
    rest = [choice for choice, mark in zip(choices, marks, strict=True) if mark is None]
    return [ranked[index][0] for index in selection.indices] + ([] if selection.is_final else rest)


def _timed(decision: Decision, calls: Sequence[RankedCall | AbstainedCall], started: float) -> Decision:
    """Return ``decision`` with the seconds of all calls for the op, and of this since ``started``."""
    return replace(decision, seconds=sum(call.seconds for call in calls) + perf_counter() - started)


def _vendors_alone(choices: list[Any], marks: list[Mark | None]) -> list[Any]:
    """Return one of the vendor's kernels: of an addmm's the one that adds the bias on the way, where there is one."""
    is_kept = [mark is not None and isinstance(mark.call, AbstainedCall) and mark.call.keeps_vendor for mark in marks]
    return vendors_best([choice for choice, kept in zip(choices, is_kept, strict=True) if kept])


class _Pool:
    """The candidates of all calls of one op, end to end."""

    def __init__(self, calls: list[RankedCall]) -> None:
        self._calls = calls
        self._starts = list(itertools.accumulate((len(call.ktcs) for call in calls), initial=0))
        self._predicted = np.concatenate([call.ranking.predicted_us for call in calls])
        self._vendor = np.concatenate([call.ranking.is_vendor for call in calls])
        spreads = [(start, call.ranking.spread) for start, call in zip(self._starts, calls, strict=False)]
        known = [(start, spread) for start, spread in spreads if spread is not None]
        # Of one call alone it would leave the candidates of the others out.
        self._spread = Spread.joined(known) if len(known) == len(calls) else None
        self._kernels_us = np.concatenate([call.ranking.kernels_us for call in calls])
        unfused_us = max(call.ranking.unfused_us for call in calls)
        self._note = f"; {unfused_us:.1f} us are counted for what a vendor's leaves unfused" if unfused_us else ""
        self._is_similar = bool(calls[0].ranking.similar_to)
        if self._is_similar:
            self._note += f"{BY_SIMILAR}{calls[0].ranking.similar_to}"
        ranges = [call.ranking.over for call in calls if call.ranking.over is not None]
        if ranges and len(ranges) == len(calls):
            # What is best at a size may be in another call: a vendor's kernel alone in its own has no regret there.
            joined = SizeRange(np.concatenate([over.predicted_us for over in ranges], axis=1), ranges[0].text)
            self._predicted, note = joined.worst_regret_us()
            self._note += f"; {note}"

    def everything(self) -> list[int]:
        """Return every position."""
        return list(range(self._starts[-1]))

    def position(self, mark: Mark) -> int:
        """Return where a marked choice's candidate lies."""
        place = next(place for place, call in enumerate(self._calls) if call is mark.call)
        return self._starts[place] + (mark.index or 0)

    def decide(self, positions: list[int], owner: Owner) -> tuple[KeptCandidates, Decision]:
        """Apply the policy to the candidates at ``positions``.

        Returns:
            Which of ``positions`` to keep, and the record of it.
        """
        predicted, vendor = self._predicted[positions], self._vendor[positions]
        spread = None if self._spread is None else self._spread.left(positions, self._vendor)
        policy = owner.policy.benchmarking if self._is_similar else owner.policy
        selection = select(predicted, vendor, policy, spread)
        vendor_us = float(self._kernels_us[positions][vendor].min()) if vendor.any() else None
        first = self._calls[0]
        decision = Decision(
            op=first.op,
            problem=first.ranking.problem,
            hardware=first.ranking.hardware.name,
            device=first.ranking.hardware,
            candidates=self._starts[-1],
            chosen=tuple(self._candidate(positions[index]) for index in selection.indices),
            vendor_us=vendor_us,
            reason=selection.reason + self._note,
            observed=owner.observe,
            p_within_2pct=selection.p_within_2pct,
            model_sha256=first.ranking.model_sha256,
            policy=policy if self._is_similar else None,
        )
        return selection, decision

    def _candidate(self, position: int) -> PredictedConfig:
        place = bisect.bisect_right(self._starts, position) - 1
        ktc = self._calls[place].ktcs[position - self._starts[place]]
        return PredictedConfig(config_of_ktc(ktc), float(self._kernels_us[position]))
