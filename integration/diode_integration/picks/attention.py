"""Flex attention whose config a picks file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_collectors.inductor.adapter import detect_hardware
from diode_integration.inductor.attention import why_not

if TYPE_CHECKING:
    from diode_collectors.inductor.attention import Call
    from diode_integration.picks.search import FilePicks, Sought
    from diode_store.records import Hardware


def picked(picks: FilePicks, hardware: Hardware | None, op: str, call: Call) -> Sought | None:
    """Return the pick for a call; None without one that can be used.

    Args:
        picks: the file's picks.
        hardware: the device to choose for; None for the call's own.
        op: the op whose configs Inductor asks for.
        call: the call.

    Raises:
        RecordError: inputs that make no attention.
    """
    device = hardware or detect_hardware(call.query.get_device())
    if device is None or not picks.has_op(op):
        return None
    problem = call.problem(op)
    if problem is None:
        return None
    return picks.alone(problem, device, lambda config: why_not(config, op, call))
