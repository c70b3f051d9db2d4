"""Known devices, their aliases, and the search for a device by name.

The table supplies what a file or a driver leaves out (an imported file only names its device). Figures are the
vendors' published ones; clocks are maximum boost clocks.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from diode_store.errors import FIRST_STEP, HardwareError, NoHardwareError
from diode_store.records import Hardware
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

NVIDIA = "nvidia"
AMD = "amd"


def _nvidia(
    name: str, arch: str, sms: int, l2_mib: int, shared: int, memory_gb: int, gb_per_s: int, mhz: int
) -> Hardware:
    return Hardware(NVIDIA, name, arch, sms, l2_mib * MIB, shared, memory_gb * 10**9, gb_per_s * 10**9, mhz)


# Columns: name as the driver reports it, arch, multiprocessors, L2 in MiB, opt-in shared memory per block in bytes,
# memory in GB, bandwidth in GB/s, clock in MHz. Sources: the vendors' data sheets, such as NVIDIA's of the H100 (SXM,
# PCIe and NVL) and the H200; what these leave out is what the driver reports.
KNOWN_DEVICES: tuple[Hardware, ...] = (
    _nvidia("NVIDIA B200", "sm_100", 148, 126, 232448, 180, 8000, 1965),
    _nvidia("NVIDIA H200", "sm_90", 132, 60, 232448, 141, 4800, 1980),
    _nvidia("NVIDIA H100 80GB HBM3", "sm_90", 132, 50, 232448, 80, 3350, 1980),
    _nvidia("NVIDIA H100 NVL", "sm_90", 132, 50, 232448, 94, 3938, 1785),
    _nvidia("NVIDIA H100 PCIe", "sm_90", 114, 50, 232448, 80, 2039, 1755),
    _nvidia("NVIDIA H20", "sm_90", 78, 60, 232448, 96, 4000, 1980),
    # The driver names a GH200 by its CPU's memory. Memory and bandwidth: NVIDIA's data sheet of the GH200 (96 GB at
    # 4 TB/s, 144 GB at 4.9 TB/s); multiprocessors, L2 and clock: as its driver reports them.
    _nvidia("NVIDIA GH200 480GB", "sm_90", 132, 60, 232448, 96, 4000, 1980),
    _nvidia("NVIDIA GH200 144G HBM3e", "sm_90", 132, 60, 232448, 144, 4900, 1980),
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
    Hardware(AMD, "AMD Instinct MI300X", "gfx942", 304, 4 * MIB, 65536, 192 * 10**9, 5300 * 10**9, 2100),
)

BUILTIN_ALIASES: dict[str, str] = {
    "b200": "NVIDIA B200",
    "h200": "NVIDIA H200",
    "h100": "NVIDIA H100",
    "h100-sxm": "NVIDIA H100 80GB HBM3",
    "h100-nvl": "NVIDIA H100 NVL",
    "h100-pcie": "NVIDIA H100 PCIe",
    "h20": "NVIDIA H20",
    "gh200": "NVIDIA GH200",
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
"""Built-in aliases: alias → device name or a prefix of it."""

NEXT_STEP = "to add a GPU, run `diode tune` on it, or `diode-collect` for its timings alone"
"""Advice for a device without measurements."""
_SEPARATOR = re.compile(r",(?![^(]*\))")


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
        """Number of multiprocessors."""


_Model = TypeVar("_Model", bound=DeviceModel)


def split_names(text: str) -> list[str]:
    """Return the names of a comma list; a comma in brackets, as in what ``describe`` returns, separates nothing."""
    return [name for part in _SEPARATOR.split(text) if (name := part.strip())]


def match_hardware(
    rows: Sequence[_Model],
    text: str,
    all_matches: bool | None = False,  # noqa: FBT001, FBT002 - the name that every component was promised
    aliases: Mapping[str, Collection[str]] | None = None,
    preferred: Iterable[DeviceModel] = (),
) -> list[_Model]:
    """Return the device models that ``text`` names, ignoring case.

    An alias is tried first, then the exact name, then a prefix of the name that ends at a word boundary. Text as
    ``describe`` lists it distinguishes two devices with the same name.

    Args:
        rows: the device models to search.
        text: the name as typed.
        all_matches: accept device models that differ in arch or multiprocessors; None refuses them for a caller that
            has no such option.
        aliases: stored aliases, lower case → names; the built-in aliases work besides.
        preferred: if several match, only these count, such as devices with measurements.

    Raises:
        NoHardwareError: none matches; the message lists the candidates.
        HardwareError: several match that are not comparable; the message lists them.
    """
    found = narrowed(_candidates(rows, text.strip().lower(), aliases or {}), preferred)
    if not found:
        raise NoHardwareError(f"no hardware matches {text!r}; {_what_there_is(rows)}; {NEXT_STEP}", text)
    if not all_matches and len({(row.arch, row.multiprocessors) for row in found}) > 1:
        remedy = "" if all_matches is None else ", or pass --all-matches"
        raise HardwareError(f"{text!r} matches different devices: {describe(found)}; {_name_one(found)}{remedy}")
    return found


def narrowed(found: Sequence[_Model], *preferences: Iterable[DeviceModel]) -> list[_Model]:
    """Return the devices of ``found`` in the first of ``preferences`` that holds any of them; else all.

    A single device stays, and then no preference is read.
    """
    for preference in preferences if len(found) > 1 else ():
        wanted = {_identity(device) for device in preference}
        kept = [row for row in found if _identity(row) in wanted]
        if kept:
            return kept
    return list(found)


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


def find_device(
    name: str,
    *preferences: Iterable[DeviceModel],
    stored: Sequence[Hardware] = (),
    aliases: Mapping[str, Collection[str]] | None = None,
) -> Hardware:
    """Return the one device that ``name`` means: an alias, a name or the first words of one.

    Args:
        name: the name as typed.
        preferences: groups of devices. If several devices match, only members of the first group with a match count. An
            iterator is read only if it is needed.
        stored: devices of a warehouse, searched beside the known ones.
        aliases: aliases of the warehouse.

    Raises:
        HardwareError: no device matches, or several do; the message lists them or names a remedy.
    """
    rows = list({device.key: device for device in (*KNOWN_DEVICES, *stored)}.values())
    found = narrowed(_candidates(rows, name.strip().lower(), aliases or {}), *preferences)
    if not found:
        raise unknown(name, stored)
    if len(found) > 1:
        raise ambiguous(name, found)
    return found[0]


def ambiguous(name: str, found: Collection[DeviceModel]) -> HardwareError:
    """Return the error that lists the devices that ``name`` may mean."""
    return HardwareError(f"{name!r} could be any of: {describe(found)}; {_name_one(found)}")


def unknown(name: str, others: Iterable[DeviceModel] = ()) -> NoHardwareError:
    """Return the error for a name that means no device: similar names, and how to measure a new GPU.

    Args:
        name: the name as typed.
        others: devices that would be found beside the known ones.
    """
    names = {device.name.lower(): device.name for device in (*KNOWN_DEVICES, *others)}
    names |= {alias: alias for alias in BUILTIN_ALIASES}
    near = [names[text] for text in difflib.get_close_matches(name.strip().lower(), names, n=3)]
    listed = near or [device.name for device in KNOWN_DEVICES]
    hint = "similar names" if near else "known"
    return NoHardwareError(f"no device is known by the name {name!r}; {hint}: {', '.join(listed)}; {NEXT_STEP}", name)


def require_device(name: str, *, elsewhere: str = " or in `diode import --hardware-file FILE`") -> Hardware:
    """Return the known device with this alias, name or prefix.

    Args:
        name: the name as typed, or from a row.
        elsewhere: another place that may describe a device, for the message.

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


def family_name(name: str) -> str:
    """Return the shortest name that a built-in alias gives a device: ``NVIDIA H100`` for NVIDIA H100 80GB HBM3."""
    families = [wanted for wanted in BUILTIN_ALIASES.values() if _is_prefix(name.lower(), wanted.lower())]
    return min(families, key=len, default=name)


def with_known_attributes(hardware: Hardware) -> Hardware:
    """Return ``hardware`` with missing attributes filled in from the table of known devices."""
    known = next((device for device in KNOWN_DEVICES if device.key == hardware.key), None)
    if known is None:
        return hardware
    missing = {f.name: getattr(known, f.name) for f in fields(Hardware) if getattr(hardware, f.name) is None}
    return replace(hardware, **missing)


def published(hardware: Hardware) -> Hardware:
    """Return the entry of ``hardware`` in the table of known devices; ``hardware`` itself if it has none.

    Drivers report clocks and bandwidths in their own ways, so two records of one device compare by this alone.
    """
    return next((device for device in KNOWN_DEVICES if device.key == hardware.key), hardware)


def describe(rows: Iterable[DeviceModel]) -> str:
    """Return ``NAME (ARCH, N multiprocessors)`` of each, sorted and joined by commas."""
    return ", ".join(sorted({_label(row) for row in rows}))


def _label(row: DeviceModel) -> str:
    return f"{row.name} ({row.arch}, {row.multiprocessors} multiprocessors)"


def _identity(row: DeviceModel) -> tuple[str, str, int]:
    return row.name, row.arch, row.multiprocessors


def _name_one(found: Collection[DeviceModel]) -> str:
    """Return names that choose among ``found``; an addition tells two devices with one name apart."""
    if len({row.name for row in found}) == len({_identity(row) for row in found}):
        return "name one of them"
    return "name one exactly as it is listed here, brackets included"


def _candidates(rows: Sequence[_Model], text: str, aliases: Mapping[str, Collection[str]]) -> list[_Model]:
    if not text:
        return []
    if text in aliases:
        names = {name.lower() for name in aliases[text]}
        return [row for row in rows if row.name.lower() in names]
    exact = [row for row in rows if text in {row.name.lower(), _label(row).lower()}]
    if exact:
        return exact
    wanted = BUILTIN_ALIASES.get(text, text).lower()
    exact = [row for row in rows if row.name.lower() == wanted]
    return exact or [row for row in rows if _is_prefix(row.name.lower(), wanted)]


def _is_prefix(name: str, prefix: str) -> bool:
    """Return whether ``prefix`` ends at the end of a word of ``name``: "nvidia h100" is no prefix of "nvidia h1000"."""
    return name.startswith(prefix) and not name[len(prefix) : len(prefix) + 1].isalnum()


def _what_there_is(rows: Sequence[DeviceModel]) -> str:
    return f"there is: {describe(rows)}" if rows else f"there is none yet; {FIRST_STEP}"
