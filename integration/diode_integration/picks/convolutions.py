"""Convolutions whose kernel a picks file names.

Inductor asks no choices handler about a convolution's kernels, so the hook acts when Inductor lowers the op. A vendor
kernel is lowered without tuning, and a product as a product, which the hook ranks as any other. A template is the only
one left of Inductor's list, and without its code the vendor kernel stands in.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.inductor.convolutions import ARGUMENTS, CONVOLUTION, pointwise_convolutions_kept, problem_of_call
from diode_integration.inductor.entry import marking_later
from diode_integration.inductor.listing import patched
from diode_integration.picks.search import PickMark
from diode_store.kernels import KernelConfig
from diode_store.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_integration.inductor.entry import Handler, Lower, LowerWith
    from diode_integration.picks.search import FilePicks, Sought
    from diode_store.records import Hardware

(VENDOR,), (PRODUCT,) = OPS[CONVOLUTION].vendors, OPS[CONVOLUTION].other_vendors


def picked(
    picks: FilePicks, owner: Handler, hardware: Hardware | None, arguments: Sequence[Any], named: Mapping[str, Any]
) -> LowerWith | None:
    """Return how to lower a call of ``aten.convolution`` with its picked kernel; None without a pick.

    Args:
        picks: the file's picks.
        owner: the handler.
        hardware: the device to choose for; None for the call's own.
        arguments: the call's arguments.
        named: those by name.

    Raises:
        RecordError: sizes that make no convolution.
    """
    given = {**dict(zip(ARGUMENTS, arguments, strict=False)), **named}
    problem = problem_of_call(given)
    device = hardware or detect_hardware(given["x"].get_device())
    sought = None if problem is None or device is None else picks.alone(problem, device)
    return None if sought is None else partial(_lowered, sought, owner)


def _lowered(sought: Sought, owner: Handler, lower: Lower) -> Any:
    with ExitStack() as stack:
        try:
            _prepare(stack, sought, owner)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            stack.close()
            owner.failed(error)
        return lower()


def _prepare(stack: ExitStack, sought: Sought, owner: Handler) -> None:
    """Have the next call lowered with its picked kernel, until the stack is closed."""
    config = sought.pick.configs[0]
    if config.template == VENDOR:
        stack.enter_context(patched(max_autotune=False, max_autotune_gemm=False))
        owner.settled(sought.decision(0, observe=False))
        return
    if config.template == PRODUCT:
        stack.enter_context(patched(conv_1x1_as_mm=True))
        return
    marks = {
        config: {PickMark.KEY: PickMark(owner, sought, 0)},
        KernelConfig(VENDOR): {PickMark.KEY: PickMark(owner, sought, None)},
    }
    stack.enter_context(pointwise_convolutions_kept())
    stack.enter_context(marking_later(lambda: marks))
