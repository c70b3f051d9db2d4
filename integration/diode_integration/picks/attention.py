"""Flex attention whose config a picks file names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.adapter import detect_hardware
from diode_collectors.inductor.attention import Call
from diode_integration.inductor.attention import why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_integration.picks.search import FilePicks, Sought
    from diode_store.records import Hardware


def picked(picks: FilePicks, hardware: Hardware | None, op: str, arguments: Sequence[Any]) -> Sought | None:
    """Return the pick for a call; None without one that can be used.

    Args:
        picks: the file's picks.
        hardware: the device to choose for; None for the call's own.
        op: the op whose configs Inductor asks for.
        arguments: the arguments of the lowering.

    Raises:
        RecordError: they are not those of attention.
    """
    if not picks.has_any({op}):
        return None
    call = Call.of(arguments)
    device = hardware or detect_hardware(call.query.get_device())
    problem = None if device is None else call.problem(op)
    if problem is None or device is None:
        return None
    return picks.alone(problem, device, lambda config: why_not(config, op, call))
