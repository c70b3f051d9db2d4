"""The kernel of a convolution: that of a picks file, or the one that a model predicts fastest.

Inductor asks no choices handler about a convolution's kernels, so the hook acts when Inductor lowers the op. The
library's kernel is lowered without tuning, and a product as a product, which the hook ranks as any other. A template is
the only one left of Inductor's list, and without its code the library's kernel stands in.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_collectors.inductor.convolutions import ARGUMENTS, CONVOLUTION, pointwise_convolutions_kept, problem_of_call
from diode_integration.decide.decision import DecidedBy, Decision
from diode_integration.inductor.convolutions import PRODUCT, VENDOR, KeptMark, candidates_of, kept_alone
from diode_integration.inductor.listing import patched
from diode_store.candidates.convolution_space import why_not_trusted
from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from diode_integration.decide.alone import AloneModels
    from diode_integration.inductor.entry import Handler, Lower, LowerWith
    from diode_integration.picks.search import FilePicks
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem


class _Chosen(NamedTuple):
    """Kernel for a convolution."""

    config: KernelConfig
    decision: Decision
    who: str
    """Words for a person: who chose it."""
    on_missing: Callable[..., None] = lambda **_: None
    """Called if Inductor cannot generate the kernel's code."""


def choose(
    owner: Handler,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    picks: FilePicks | None,
    models: AloneModels | None,
) -> LowerWith | None:
    """Return how to lower a call of ``aten.convolution`` with its kernel; None if Inductor chooses.

    An owner that observes has the kernel recorded.

    Args:
        owner: the handler.
        arguments: the call's arguments.
        named: those by name.
        picks: the picks that decide first.
        models: the models that decide where there is no pick.
    """
    given = {**dict(zip(ARGUMENTS, arguments, strict=False)), **named}
    problem = None
    with suppress(RecordError):  # sizes that make no convolution, such as an empty batch
        problem = problem_of_call(given)
    device = owner.device_of(given["x"].get_device())
    if problem is None or device is None:
        return None
    chosen = None if picks is None else _picked(picks, problem, device)
    if chosen is None:
        chosen = _predicted(owner, problem, device, given["x"].get_device(), models)
    if chosen is not None and owner.observe:
        owner.settled(replace(chosen.decision, observed=True), is_counted=True)
        return None
    return None if chosen is None else partial(_lowered, chosen, problem, owner)


def _picked(picks: FilePicks, problem: Problem, device: Hardware) -> _Chosen | None:
    sought = picks.alone(problem, device, partial(why_not_trusted, problem.shape))
    if sought is None:
        return None
    missed = partial(sought.source.missed, sought.pick)
    return _Chosen(sought.pick.configs[0], sought.decision(0, observe=False), sought.source.name, missed)


def _predicted(
    owner: Handler, problem: Problem, device: Hardware, compiling: torch.device, models: AloneModels | None
) -> _Chosen | None:
    """Return the kernel that a model predicts fastest, else the library's; None if Inductor chooses."""
    if models is None:
        nobody = "no_model: no model ranks convolutions"
        decision = Decision(CONVOLUTION, problem, device.name, 0, (), None, nobody, device=device)
    else:
        vendor, *others = candidates_of(problem)
        found = models.choose(problem, device, vendor, others)
        if found.config is not None:
            return _Chosen(found.config, found.decision, "the model")
        decision = found.decision
    why = owner.why_untuned(compiling)
    if why is None:
        return None
    reason = f"{decision.reason}; the vendor kernel is kept: {why}"
    return _Chosen(VENDOR, replace(decision, decided_by=DecidedBy.VENDOR, reason=reason), "the hook")


def _lowered(chosen: _Chosen, problem: Problem, owner: Handler, lower: Lower) -> Any:
    with ExitStack() as stack:
        try:
            _prepare(stack, chosen, problem, owner)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            stack.close()
            owner.failed(error)
        return lower()


def _prepare(stack: ExitStack, chosen: _Chosen, problem: Problem, owner: Handler) -> None:
    """Have the next call lowered with its kernel, until the stack is closed."""
    config = chosen.config
    if config.template == VENDOR.template:
        stack.enter_context(patched(max_autotune=False, max_autotune_gemm=False))
        owner.settled(chosen.decision, is_counted=True)
        return
    if config.template == PRODUCT.template:
        stack.enter_context(patched(conv_1x1_as_mm=True))
        return
    if problem.shape.dtype != "float32":  # cuDNN's setting is part of a template's config, and changes no other dtype
        config = replace(config, allow_tf32=None)
    mark = partial(KeptMark, owner, chosen.decision, chosen.who, chosen.on_missing)
    stack.enter_context(pointwise_convolutions_kept())
    stack.enter_context(kept_alone(config, mark))
