"""Compute capabilities: which ops an NVIDIA GPU has kernels for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.devices.known import NVIDIA
from diode_store.ops import OPS

if TYPE_CHECKING:
    from diode_store.records import Hardware


def capability_of(hardware: Hardware) -> int:
    """Return the compute capability of an NVIDIA GPU, such as 90 for 9.0; 0 for any other device."""
    arch = hardware.arch.removeprefix("sm_")
    return int(arch) if arch.isdecimal() else 0


def capability_text(capability: int) -> str:
    """Return a capability for a person: ``compute capability 8.9``."""
    return f"compute capability {capability // 10}.{capability % 10}"


def why_no_kernels(op: str, hardware: Hardware) -> str | None:
    """Return why Inductor has no kernels of an op to choose from on an NVIDIA GPU; None if it has some.

    Other vendors' GPUs have no rule here.
    """
    needed, found = OPS[op].capability, capability_of(hardware)
    if hardware.vendor != NVIDIA or not found or found >= needed:
        return None
    return f"{op} needs {capability_text(needed)}, and {hardware.name} has {found // 10}.{found % 10}"
