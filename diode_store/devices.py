"""Known devices, their aliases, and the search for a device by name.

The table supplies what a file or a driver leaves out (an imported file only names its device). Figures are the
vendors' published ones; clocks are maximum boost clocks.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from diode_store.errors import HardwareError
from diode_store.records import Hardware

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

NVIDIA = "nvidia"
AMD = "amd"

_MIB = 2**20


def _nvidia(
    name: str, arch: str, sms: int, l2_mib: int, shared: int, memory_gb: int, gb_per_s: int, mhz: int
) -> Hardware:
    return Hardware(NVIDIA, name, arch, sms, l2_mib * _MIB, shared, memory_gb * 10**9, gb_per_s * 10**9, mhz)


# Columns: name as the driver reports it, arch, multiprocessors, L2 in MiB, opt-in shared memory per block in bytes,
# memory in GB, bandwidth in GB/s, clock in MHz.
KNOWN_DEVICES: tuple[Hardware, ...] = (
    _nvidia("NVIDIA B200", "sm_100", 148, 126, 232448, 180, 8000, 1965),
    _nvidia("NVIDIA H200", "sm_90", 132, 60, 232448, 141, 4800, 1980),
    _nvidia("NVIDIA H100 80GB HBM3", "sm_90", 132, 50, 232448, 80, 3350, 1980),
    _nvidia("NVIDIA H100 NVL", "sm_90", 132, 50, 232448, 94, 3938, 1785),
    _nvidia("NVIDIA H100 PCIe", "sm_90", 114, 50, 232448, 80, 2039, 1755),
    _nvidia("NVIDIA H20", "sm_90", 78, 60, 232448, 96, 4000, 1980),
    _nvidia("NVIDIA A100-SXM4-80GB", "sm_80", 108, 40, 166912, 80, 2039, 1410),
    _nvidia("NVIDIA A100-SXM4-40GB", "sm_80", 108, 40, 166912, 40, 1555, 1410),
    _nvidia("NVIDIA A100 80GB PCIe", "sm_80", 108, 40, 166912, 80, 1935, 1410),
    _nvidia("NVIDIA A100-PCIE-40GB", "sm_80", 108, 40, 166912, 40, 1555, 1410),
    _nvidia("NVIDIA L40S", "sm_89", 142, 96, 101376, 48, 864, 2520),
    _nvidia("NVIDIA L4", "sm_89", 58, 48, 101376, 24, 300, 2040),
    _nvidia("NVIDIA GeForce RTX 4090", "sm_89", 128, 72, 101376, 24, 1008, 2520),
    _nvidia("NVIDIA A10G", "sm_86", 80, 6, 101376, 24, 600, 1710),
    _nvidia("NVIDIA GeForce RTX 3090", "sm_86", 82, 6, 101376, 24, 936, 1695),
    _nvidia("Tesla T4", "sm_75", 40, 4, 65536, 16, 320, 1590),
    _nvidia("Tesla V100-SXM2-32GB", "sm_70", 80, 6, 98304, 32, 900, 1530),
    _nvidia("Tesla V100-SXM2-16GB", "sm_70", 80, 6, 98304, 16, 900, 1530),
    Hardware(AMD, "AMD Instinct MI300X", "gfx942", 304, 4 * _MIB, 65536, 192 * 10**9, 5300 * 10**9, 2100),
)

BUILTIN_ALIASES: dict[str, str] = {
    "b200": "NVIDIA B200",
    "h200": "NVIDIA H200",
    "h100": "NVIDIA H100",
    "h100-sxm": "NVIDIA H100 80GB HBM3",
    "h100-nvl": "NVIDIA H100 NVL",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h20": "NVIDIA H20",
    "a100": "NVIDIA A100",
    "a100-80gb": "NVIDIA A100-SXM4-80GB",
    "a100-40gb": "NVIDIA A100-SXM4-40GB",
    "l40s": "NVIDIA L40S",
    "l4": "NVIDIA L4",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "a10g": "NVIDIA A10G",
    "rtx3090": "NVIDIA GeForce RTX 3090",
    "t4": "Tesla T4",
    "v100": "Tesla V100",
    "mi300x": "AMD Instinct MI300X",
}
"""Alias → device name or a prefix of it; these work without being stored."""


class DeviceModel(Protocol):
    """Anything that identifies a device model: ``Hardware``, or a row of a view."""

    @property
    def name(self) -> str:
        """Name as the driver reports it."""

    @property
    def arch(self) -> str:
        """Architecture, such as ``sm_90``."""

    @property
    def multiprocessors(self) -> int:
        """How many multiprocessors it has."""


_Model = TypeVar("_Model", bound=DeviceModel)


def match_hardware(
    rows: Sequence[_Model],
    text: str,
    all_matches: bool = False,  # noqa: FBT001, FBT002 - the name that every component was promised
    aliases: Mapping[str, Collection[str]] | None = None,
) -> list[_Model]:
    """Return the device models that ``text`` names, ignoring case.

    An alias is tried first, then the exact name, then a prefix of the name that ends at a word boundary.

    Args:
        rows: the device models to search.
        text: the name as typed.
        all_matches: accept device models that differ in arch or multiprocessors.
        aliases: stored ones, lower case → names; the built-in aliases work besides.

    Raises:
        HardwareError: none matches, or several do that are not comparable; the message lists them.
    """
    found = _candidates(rows, text.strip().lower(), aliases or {})
    if not found:
        raise HardwareError(f"no hardware matches {text!r}; {_what_there_is(rows)}")
    if not all_matches and len({(row.arch, row.multiprocessors) for row in found}) > 1:
        raise HardwareError(
            f"{text!r} matches different devices: {describe(found)}; name one of them, or pass --all-matches"
        )
    return found


def known_devices(name: str) -> list[Hardware]:
    """Return every known device that ``name`` may mean (alias, name or prefix)."""
    return _candidates(KNOWN_DEVICES, name.strip().lower(), {})


def known_device(name: str) -> Hardware | None:
    """Return the known device with this alias, name or prefix, or None.

    Raises:
        HardwareError: several devices match; the message lists them.
    """
    found = known_devices(name)
    if len(found) > 1:
        raise ambiguous(name, found)
    return found[0] if found else None


def ambiguous(name: str, found: Iterable[DeviceModel]) -> HardwareError:
    """Return the error that lists the devices that ``name`` may mean."""
    return HardwareError(f"{name!r} could be any of: {describe(found)}; name one of them")


def require_device(name: str, *, elsewhere: str = " or in `diode import --hardware-file FILE`") -> Hardware:
    """Return the known device with this alias, name or prefix.

    Args:
        name: the name as typed, or from a row.
        elsewhere: another place where a device may be described, for the message.

    Raises:
        HardwareError: none matches, or several do; the message lists the known or the matching ones.
    """
    found = known_device(name)
    if found is None:
        known = ", ".join(device.name for device in KNOWN_DEVICES)
        raise HardwareError(
            f"unknown hardware {name!r}; describe it (vendor, name, arch, multiprocessors) as an object in the row"
            f"{elsewhere}, or name one of: {known}"
        )
    return found


def with_known_attributes(hardware: Hardware) -> Hardware:
    """Return ``hardware`` with missing attributes filled in from the table of known devices."""
    known = next((device for device in KNOWN_DEVICES if device.key == hardware.key), None)
    if known is None:
        return hardware
    missing = {f.name: getattr(known, f.name) for f in fields(Hardware) if getattr(hardware, f.name) is None}
    return replace(hardware, **missing)


def describe(rows: Iterable[DeviceModel]) -> str:
    """Return ``NAME (ARCH, N multiprocessors)`` of each, sorted and joined by commas."""
    return ", ".join(sorted({f"{row.name} ({row.arch}, {row.multiprocessors} multiprocessors)" for row in rows}))


def _candidates(rows: Sequence[_Model], text: str, aliases: Mapping[str, Collection[str]]) -> list[_Model]:
    if not text:
        return []
    if text in aliases:
        names = {name.lower() for name in aliases[text]}
        return [row for row in rows if row.name.lower() in names]
    exact = [row for row in rows if row.name.lower() == text]
    if exact:
        return exact
    wanted = BUILTIN_ALIASES.get(text, text).lower()
    exact = [row for row in rows if row.name.lower() == wanted]
    return exact or [row for row in rows if _is_prefix(row.name.lower(), wanted)]


def _is_prefix(name: str, prefix: str) -> bool:
    """Whether ``prefix`` ends where a word of ``name`` does: "nvidia h100" is no prefix of "nvidia h1000"."""
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


def _what_there_is(rows: Sequence[DeviceModel]) -> str:
    return f"there is: {describe(rows)}" if rows else "there is none yet; add measurements first"
