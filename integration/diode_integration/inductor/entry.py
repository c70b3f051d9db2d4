"""The two places where Inductor calls the hook: for the candidates of each call, and once for all choices of an op.

Inductor may call several times for one op. torch 2.13 lists an addmm's vendor kernels, its Triton templates and its
contiguous variant separately. A call therefore drops only candidates that cannot win in any case, and leaves a ``Mark``
on the rest. Dropping them saves code generation and compilation.

Inductor runs its preprocessing functions on the whole list before it counts the choices. One of them,
``final_selection``, has the handler apply its policy to all marks together.

The hook leaves choices without a mark (C++, CUTLASS, decompose_k …) alone, unless nothing may be benchmarked. That is
so in zero mode, and if adaptive mode keeps one candidate alone.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, annotations_of, config_of_choice, config_of_ktc
from diode_integration.decide.decision import DecidedBy, Decision, OpRankings, PredictedConfig
from diode_integration.inductor.listing import CandidateOffer, vendors_best

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_collectors.inductor.fused_source import FusedSource
    from diode_integration.decide.clock import Clock, Timed
    from diode_integration.decide.models import ModelSet
    from diode_integration.decide.ranking import Ranking
    from diode_integration.inductor.attention import Offered
    from diode_integration.inductor.fused import Retuned
    from diode_store.records import Hardware, KernelConfig
    from diode_trainer.policy import Policy

HOOK_VERSION = 17
"""Part of every cache key; raise it when the same model and policy would choose differently."""

Lower = Callable[[], Any]
"""Lowers a call as Inductor does."""
LowerWith = Callable[[Lower], Any]
"""Lowers a call with the kernel that somebody chose."""
Listener = Callable[[list[Any], list[Any]], None]
"""Receives each op's choices before and after the selection; must not raise."""

_registering = threading.Lock()
_listeners: list[Listener] = []
_later = threading.local()


class GraphsInWork(Protocol):
    """Graphs that a handler's threads compile, as ``record.log.Graphs`` keeps them."""

    @property
    def has_template(self) -> bool:
        """True if the hook kept a template, or one config of a fused kernel, for this thread's graph."""

    def keeps_template(self) -> None:
        """Note that it did."""

    def compiling(self) -> AbstractContextManager[None]:
        """Compile a graph in this thread."""

    def without_model(self, failure: str) -> AbstractContextManager[None]:
        """Compile this thread's graph again, with the vendor kernels."""


class Handler(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Choices handler that decides on calls and ops. Its methods never raise inside a user's compile."""

    annotates_choices = True
    """Tells collectors that a list is stock Inductor's unless its choices say otherwise."""
    observe: bool
    policy: Policy
    clock: Clock
    models: ModelSet | None
    graphs: GraphsInWork
    serves_plain: bool
    """True if picked kernels serve compiles without max-autotune as well."""
    serves_plain_attention: bool
    """True if models choose configs of attention in them."""

    @abstractmethod
    def choose(self, offer: CandidateOffer) -> list[KernelTemplateChoice] | None:
        """Return the candidates of a call to go on with; None for stock Inductor's."""

    @abstractmethod
    def selected(self, choices: list[Any]) -> list[Any]:
        """Return the choices of an op to go on with; never an empty list."""

    @abstractmethod
    def why_untuned(self, device: torch.device | None) -> str | None:
        """Return why to lower the next op, which no model ranks, without tuning; None if Inductor chooses."""

    @abstractmethod
    def fused(self, source: FusedSource, device: torch.device) -> Retuned | None:
        """Return the source of a fused kernel to compile instead; None for the source as it is."""

    @abstractmethod
    def convolution(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> LowerWith | None:
        """Return how to lower a call of ``aten.convolution`` with its kernel; None without a pick or prediction."""

    @abstractmethod
    def attention(self, op: str, arguments: Sequence[Any], offered: Offered) -> KernelConfig | None:
        """Return the config for a call of flex attention; None for Inductor's own list."""

    @abstractmethod
    def device_of(self, device: torch.device | None) -> Hardware | None:
        """Return the device to choose for where ``device`` compiles; None if it cannot be identified."""

    @abstractmethod
    def settled(self, decision: Decision, *, is_counted: bool = False) -> None:
        """Record a decision; an abstention may be counted by the first word of its reason."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""

    @abstractmethod
    def passed_by(self, choices: list[Any]) -> None:
        """Count an op whose choices no handler saw before, such as a custom op with an autotuning of its own."""

    @abstractmethod
    def clocked(self, timed: Timed) -> None:
        """Count a benchmark by torch-diode's clock."""

    @abstractmethod
    def clock_failed(self, error: Exception) -> None:
        """Record why Inductor's benchmark runs instead."""

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Iterator[KernelTemplateChoice]],
        kernel_inputs: KernelInputs,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[KernelTemplateChoice]:
        """Return the candidates of one call that Inductor goes on with (overrides Inductor's method)."""
        offer = CandidateOffer(template_choices, kernel_inputs, templates, op_name, kwarg_overrides or {})
        kept = self.choose(offer)
        if kept is None:
            replay = offer.replay(self)
            kept = super()._finalize_template_configs(replay, kernel_inputs, templates, op_name, kwarg_overrides)
        try:
            for tell in offer.on_listed:
                tell(kept)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
        return kept


class ProcessChoices(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Handler of every thread; forwards to the handler that is installed at that moment."""

    annotates_choices = True
    handler: ClassVar[Handler | None] = None
    """The installed handler."""

    def uuid(self) -> str:
        """Return the installed handler's part of the cache key."""
        handler = ProcessChoices.handler
        return str(handler.uuid()) if handler else "torch-diode/none"

    def _finalize_template_configs(self, *args: Any, **kwargs: Any) -> Any:
        handler: Any = ProcessChoices.handler or super()
        return handler._finalize_template_configs(*args, **kwargs)  # noqa: SLF001 - the one hook Inductor has


@dataclass(frozen=True, eq=False)
class RankedCall:
    """A call of the hook whose candidates the model ranked."""

    op: str
    ranking: Ranking
    ktcs: Sequence[KernelTemplateChoice]
    """Candidates, shape (n,), in the order of the ranking."""
    seconds: float = 0.0
    """Seconds spent on ranking them."""


@dataclass(frozen=True, eq=False)
class AbstainedCall:
    """A call of the hook in which the model abstained."""

    decision: Decision

    @property
    def keeps_vendor(self) -> bool:
        """True if the hook keeps the vendor kernel alone; False if stock Inductor chooses."""
        return self.decision.decided_by is DecidedBy.VENDOR

    @property
    def seconds(self) -> float:
        """Seconds spent on the call."""
        return self.decision.seconds


@dataclass(frozen=True, eq=False)
class Mark:
    """Annotation that ties a choice to the handler that let it through."""

    KEY: ClassVar[str]
    """Key of the mark in a choice's ``annotations``."""
    owner: Handler

    def put_on(self, ktc: KernelTemplateChoice) -> None:
        """Mark a choice."""
        ktc.annotations[self.KEY] = self


@dataclass(frozen=True, eq=False)
class CallMark(Mark):
    """Ties a choice to the call that let it through."""

    KEY = "diode_mark"
    call: RankedCall | AbstainedCall
    index: int | None = None
    """Index among the ranked candidates; None for a stock choice that was only observed."""

    def put_on_all(self, listed: Sequence[KernelTemplateChoice]) -> None:
        """Mark the choices of stock Inductor, except those that cannot be marked."""
        for ktc in listed:
            try:
                ktc.annotations.pop(POLICY_ANNOTATION, None)  # left by a selection that failed half-way
                self.put_on(ktc)
            except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
                self.owner.failed(error)


_M = TypeVar("_M", bound=Mark)


def mark_of(choice: Any, kind: type[_M]) -> _M | None:
    """Return a choice's mark of a kind, if it has one; the choice may be any other hook's object."""
    try:
        found = annotations_of(choice).get(kind.KEY)
    except Exception:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        return None
    return found if isinstance(found, kind) else None


@contextmanager
def marking_later(marks: Callable[[], Callable[[KernelConfig], Mapping[str, Any] | None]]) -> Iterator[None]:
    """Have this thread's next op's choices get annotations by their configs, before the final selection."""
    _later.marks = marks
    try:
        yield
    finally:
        _later.marks = None


def _mark_now(choices: list[Any]) -> None:
    """Put the annotations of ``marking_later`` on an op's choices."""
    marks = getattr(_later, "marks", None)
    if marks is None:
        return
    marks_of = marks()
    for choice in choices:
        with suppress(Exception):  # a choice that does not describe itself stays unmarked
            choice.annotations.update(marks_of(config_of_choice(choice)) or {})


def final_selection(choices: list[Any]) -> list[Any]:
    """Have the handler that marked an op's choices select among them; Inductor calls this with each op's choices.

    Never raises and never empties a list.
    """
    _mark_now(choices)
    owner = next((owner for choice in choices if (owner := _owner_of(choice)) is not None), None)
    if owner is None and ProcessChoices.handler is not None:
        ProcessChoices.handler.passed_by(choices)
    left = choices if owner is None else owner.selected(choices)
    for listener in tuple(_listeners):
        listener(choices, left)
    return left


def settle(choices: list[Any], policy: Policy, *, observe: bool) -> tuple[list[Any], Decision] | None:
    """Apply a policy to all choices of an op together; None if the hook marked none of them.

    Returns:
        The choices that are left, and the decision.
    """
    started = perf_counter()
    marks = [mark_of(choice, CallMark) for choice in choices]
    calls = list({id(mark.call): mark.call for mark in marks if mark is not None}.values())
    if not calls:
        return None
    spent = sum(call.seconds for call in calls)
    abstained = next((call for call in calls if isinstance(call, AbstainedCall)), None)
    if abstained is not None:
        left = _vendors_alone(choices, marks) if abstained.keeps_vendor else choices
        decision = abstained.decision
    else:
        ranked = [call for call in calls if isinstance(call, RankedCall)]
        left, decision = _settle_ranked(choices, marks, ranked, policy, observe=observe)
    return left or choices, replace(decision, seconds=spent + perf_counter() - started)


def _settle_ranked(
    choices: list[Any], marks: list[CallMark | None], calls: list[RankedCall], policy: Policy, *, observe: bool
) -> tuple[list[Any], Decision]:
    rankings = OpRankings([call.ranking for call in calls])
    ranked = [(choice, mark) for choice, mark in zip(choices, marks, strict=True) if mark is not None]
    places = {id(call): place for place, call in enumerate(calls)}
    if observe:
        positions = list(range(len(rankings)))
    else:
        positions = [rankings.position(places[id(mark.call)], mark.index or 0) for _, mark in ranked]
    kept, decision = rankings.decide(positions, policy, calls[0].op)
    chosen = []
    for position in (positions[index] for index in kept.indices):
        call, index = rankings.place(position)
        chosen.append(PredictedConfig(config_of_ktc(calls[call].ktcs[index]), float(rankings.kernels_us[position])))
    decision = replace(decision, chosen=tuple(chosen), observed=observe)
    if observe:
        return choices, decision
    rest = [choice for choice, mark in zip(choices, marks, strict=True) if mark is None]
    return [ranked[index][0] for index in kept.indices] + ([] if kept.is_final else rest), decision


def _vendors_alone(choices: list[Any], marks: list[CallMark | None]) -> list[Any]:
    """Return one vendor kernel; for an addmm the one that adds the bias before it stores, if there is one."""
    is_kept = [mark is not None and isinstance(mark.call, AbstainedCall) and mark.call.keeps_vendor for mark in marks]
    return vendors_best([choice for choice, kept in zip(choices, is_kept, strict=True) if kept])


def _owner_of(choice: Any) -> Handler | None:
    try:
        values = list(annotations_of(choice).values())
    except Exception:  # noqa: BLE001 - as in ``mark_of``
        return None
    return next((value.owner for value in values if isinstance(value, Mark)), None)


def ensure_registered() -> None:
    """Have Inductor call ``final_selection``; again if its preprocessing functions were cleared."""
    with _registering:
        registered = _preprocessing_functions()
        if final_selection not in registered:
            registered.append(final_selection)


def unregister() -> None:
    """Have Inductor no longer call ``final_selection``, unless a listener remains; a listener changes no choice."""
    with _registering:
        registered = _preprocessing_functions()
        if final_selection in registered and not _listeners:
            registered.remove(final_selection)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have ``listener`` receive every op's choices, with or without an installed hook."""
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
    from torch._inductor.select_algorithm import get_algorithm_selector_cache  # circular at module level

    functions: list[Any] = get_algorithm_selector_cache().preprocessing_fns
    return functions
