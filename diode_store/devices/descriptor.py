"""Figures of a device that features and rooflines need, whatever their source.

A file may name only a device's multiprocessors, while a driver reports every attribute and the table of known devices
has published figures. Features must not depend on the source. So published figures win over reported ones, and
missing figures follow from the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from diode_store.devices.known import KNOWN_DEVICES

if TYPE_CHECKING:
    from diode_store.records import Hardware


@dataclass(frozen=True)
class Architecture:
    """Figures of one multiprocessor, and usual figures of a device of this kind.

    FLOP/s are dense and with float32 accumulation: the published peak of the largest device divided by its
    multiprocessors.
    """

    half_flops: float
    """16-bit tensor-core FLOP/s of one multiprocessor."""
    tf32_flops: float
    fp32_flops: float
    shared_memory_bytes: int
    """Per multiprocessor."""
    shared_memory_per_block_bytes: int
    l2_bytes: int
    memory_bandwidth: float
    """Bytes/s of the whole device."""
    l2_bandwidth: float
    """Bytes/s of L2 into one multiprocessor."""
    registers: int = 65_536
    """32-bit registers of one multiprocessor (CUDA C programming guide, technical specifications)."""
    threads: int = 2_048
    """Limit on the resident threads of one multiprocessor."""
    has_wgmma: bool = False
    fp8_speedup: float = 1.0
    """Peak of float8 over that of 16-bit floats; 1 without float8 tensor cores, since operands are then converted."""
    int8_speedup: float = 1.0
    """The same for int8."""


# Sources: the vendors' data sheets (V100, T4, A100 80GB SXM, RTX 3090, L40S, H100 SXM, B200, MI300X) for dense FLOP/s
# and bandwidth; CUDA C programming guide, "Technical Specifications per Compute Capability", and the CDNA 3 ISA for
# shared memory. The RTX 3090 halves its rate for 16-bit floats with float32 accumulation, but not for int8.
# The bandwidth of L2 is not published: 53 GB/s for each Hopper multiprocessor (7 TB/s over 132) is an estimate, the
# others are scaled from it by clock.
ARCHITECTURES: dict[str, Architecture] = {
    "sm_70": Architecture(1.56e12, 0.20e12, 0.20e12, 98_304, 98_304, 6_291_456, 0.900e12, 41e9),
    "sm_75": Architecture(
        1.63e12, 0.20e12, 0.20e12, 65_536, 65_536, 4_194_304, 0.320e12, 41e9, threads=1_024, int8_speedup=2.0
    ),
    "sm_80": Architecture(2.89e12, 1.44e12, 0.18e12, 167_936, 166_912, 41_943_040, 2.039e12, 41e9, int8_speedup=2.0),
    "sm_86": Architecture(
        0.91e12, 0.46e12, 0.46e12, 102_400, 101_376, 6_291_456, 0.768e12, 41e9, threads=1_536, int8_speedup=4.0
    ),
    "sm_89": Architecture(
        2.55e12,
        1.29e12,
        0.64e12,
        102_400,
        101_376,
        100_663_296,
        0.864e12,
        60e9,
        threads=1_536,
        fp8_speedup=2.0,
        int8_speedup=2.0,
    ),
    "sm_90": Architecture(
        7.49e12,
        3.74e12,
        0.51e12,
        233_472,
        232_448,
        52_428_800,
        3.35e12,
        53e9,
        has_wgmma=True,
        fp8_speedup=2.0,
        int8_speedup=2.0,
    ),
    "sm_100": Architecture(
        15.2e12, 7.6e12, 0.54e12, 233_472, 232_448, 132_120_576, 8.0e12, 53e9, fp8_speedup=2.0, int8_speedup=2.0
    ),
    "gfx942": Architecture(
        4.30e12,
        2.15e12,
        0.54e12,
        65_536,
        65_536,
        4_194_304,
        5.3e12,
        53e9,
        registers=131_072,
        fp8_speedup=2.0,
        int8_speedup=2.0,
    ),
}
_DEFAULT_ARCHITECTURE = ARCHITECTURES["sm_80"]


@dataclass(frozen=True)
class Descriptor:
    """One device, every attribute filled."""

    multiprocessors: int
    l2_bytes: int
    shared_memory_per_block_bytes: int
    memory_bandwidth: float
    """Bytes/s."""
    architecture: Architecture

    def peak_flops(self, itemsize: int, *, tf32: bool = False, is_integer: bool = False) -> float:
        """Return the device's FLOP/s.

        Args:
            itemsize: bytes of an element of the inputs.
            tf32: True if float32 may be multiplied as TF32.
            is_integer: True for integers, which matters for inputs of one byte.
        """
        architecture = self.architecture
        if itemsize > 2:  # noqa: PLR2004 - two bytes is what half precision means
            per_multiprocessor = architecture.tf32_flops if tf32 else architecture.fp32_flops
        else:
            per_multiprocessor = architecture.half_flops
        if itemsize == 1:
            per_multiprocessor *= architecture.int8_speedup if is_integer else architecture.fp8_speedup
        return per_multiprocessor * self.multiprocessors


def is_described(hardware: Hardware) -> bool:
    """Return whether the peaks of ``hardware`` are known rather than assumed."""
    return hardware.arch in ARCHITECTURES


@lru_cache(maxsize=64)
def describe(hardware: Hardware) -> Descriptor:
    """Return the descriptor of ``hardware``: published figures, else its own, else its architecture's."""
    known = next((device for device in KNOWN_DEVICES if device.key == hardware.key), None)
    architecture = ARCHITECTURES.get(hardware.arch, _DEFAULT_ARCHITECTURE)

    def first(attribute: str, default: float) -> float:
        for source in (known, hardware):
            value = getattr(source, attribute, None)
            if value is not None:
                return float(value)
        return default

    return Descriptor(
        multiprocessors=hardware.multiprocessors,
        l2_bytes=int(first("l2_bytes", architecture.l2_bytes)),
        shared_memory_per_block_bytes=int(
            first("shared_memory_per_block_bytes", architecture.shared_memory_per_block_bytes)
        ),
        memory_bandwidth=first("memory_bandwidth_bytes_per_s", architecture.memory_bandwidth),
        architecture=architecture,
    )
