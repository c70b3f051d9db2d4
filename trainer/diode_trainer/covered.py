"""Decide how well a model knows a device, from its training devices and from checks on left-out devices.

The hook, `diode doctor`, `diode predict`, `diode models` and ``import torch_diode`` all ask ``standing_of``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from diode_store.devices.known import NVIDIA, describe, published
from diode_store.records import Hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

TOLERANCE = 0.03
"""Relative distance that a descriptor other than the multiprocessors may have to the range of the training devices. The
bandwidth that a driver reports can exceed the published figure.
"""
FEWEST_CHECKED = 50
"""Fewest problems of a check on a left-out device."""
MOST_REGRET = 1.02
"""Highest regret@1 on a left-out device that supports the model on unseen devices."""
MOST_BEHIND = 1.01
"""A higher regret@1 also supports the model, if it is within this ratio of a model that saw the device."""


_Model = TypeVar("_Model")
NEAR_MARGIN = 2.0
"""Factor that widens the calibration on a near device. The calibration was fitted on known devices, and members that
learned from the same devices make the same errors on another.
"""


class Familiarity(StrEnum):
    """Levels of a model's knowledge of a device."""

    KNOWN = "known"
    """All modes work, with the calibration as it is."""
    NEAR = "near"
    """The hook asks the model, and benchmarks more than on a known device."""
    UNKNOWN = "unknown"
    """The hook does not ask the model."""


class _Descriptor(NamedTuple):
    attribute: str
    name: str
    tolerance: float
    shown: Callable[[float], str]
    """Formats a value without its unit."""
    unit: str = ""


_DESCRIPTORS = (
    _Descriptor("multiprocessors", "number of multiprocessors", 0.0, lambda value: f"{value:.0f}"),
    _Descriptor("max_clock_mhz", "max clock", TOLERANCE, lambda value: f"{value:.0f}", " MHz"),
    _Descriptor("l2_bytes", "L2 cache", TOLERANCE, lambda value: f"{value / 2**20:.3g}", " MiB"),
    _Descriptor("memory_bandwidth_bytes_per_s", "memory bandwidth", TOLERANCE, lambda v: f"{v / 1e12:.3g}", " TB/s"),
)
"""Descriptors that distinguish devices of one architecture. Shared memory follows from the architecture."""


@dataclass(frozen=True)
class CoveredHardware:
    """Device model in the training data; old cards lack the descriptors."""

    name: str
    arch: str
    multiprocessors: int
    vendor: str = NVIDIA
    max_clock_mhz: int | None = None
    l2_bytes: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None

    @classmethod
    def of(cls, hardware: Hardware) -> CoveredHardware:
        """Return the description of ``hardware``: its published figures, else its own."""
        known = published(hardware)
        return cls(**{field.name: getattr(known, field.name) for field in fields(cls)})

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> CoveredHardware:
        """Rebuild a device from the result of ``asdict``.

        Raises:
            TypeError: ``content`` is not such a result.
        """
        found = cls(**content)
        texts = (found.name, found.arch, found.vendor)
        numbers = (found.max_clock_mhz, found.l2_bytes, found.memory_bandwidth_bytes_per_s)
        whole = isinstance(found.multiprocessors, int) and all(isinstance(n, int | None) for n in numbers)
        if not whole or not all(isinstance(text, str) for text in texts):
            raise TypeError("its hardware is invalid")
        return found

    def described(self) -> CoveredHardware:
        """Return the device with published figures, if there are any."""
        return CoveredHardware.of(Hardware(**asdict(self)))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Name, architecture and multiprocessors, which identify a device model."""
        return self.name, self.arch, self.multiprocessors

    @property
    def architecture(self) -> tuple[str, str]:
        """Vendor and architecture; a model does not carry over to another."""
        return self.vendor, self.arch


@dataclass(frozen=True)
class DeviceCheck:
    """Results of a model on a device left out of its training data."""

    device: str
    """Name of the left-out device."""
    problems: int
    """Number of test problems, which no training device has shown either."""
    regret_at_1: float
    regret_at_5: float
    regret_at_1_own: float
    """Regret@1 on the same problems of a fit that saw other problems of the device."""

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> DeviceCheck:
        """Rebuild a check from the result of ``asdict``.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not such a result.
        """
        regrets = [float(content[name]) for name in ("regret_at_1", "regret_at_5", "regret_at_1_own")]
        if not all(map(math.isfinite, regrets)):
            raise ValueError("a regret of its device checks is not finite")
        return cls(str(content["device"]), int(content["problems"]), *regrets)

    @property
    def supports(self) -> bool:
        """True if the check shows that the model ranks well on unseen devices."""
        is_close = self.regret_at_1 <= max(MOST_REGRET, self.regret_at_1_own * MOST_BEHIND)
        return self.problems >= FEWEST_CHECKED and is_close

    def describe(self) -> str:
        """Return the figures as text for a person."""
        return (
            f"without {self.device} its regret@1 there is {self.regret_at_1:.4f} on {self.problems} problems"
            f" ({self.regret_at_1_own:.4f} with it)"
        )


@dataclass(frozen=True)
class Standing:
    """A model's knowledge of a device, with the reason."""

    familiarity: Familiarity
    reason: str
    """One line for a person."""
    nearest: str = ""
    """Name of the most similar training device; empty for an unknown device."""
    distance: float = 0.0
    """Distance to that device: sum over the descriptors of the log ratios."""

    @property
    def is_known(self) -> bool:
        """True if the model may decide alone."""
        return self.familiarity is Familiarity.KNOWN

    @property
    def is_near(self) -> bool:
        """True if the model is asked, with a wider margin."""
        return self.familiarity is Familiarity.NEAR


@lru_cache(maxsize=256)
def standing_of(
    trained: tuple[CoveredHardware, ...], checks: tuple[DeviceCheck, ...], hardware: Hardware | CoveredHardware
) -> Standing:
    """Return how well a model knows ``hardware``.

    Args:
        trained: devices in the training data; empty if the model is for any device.
        checks: results of leaving out each of these devices.
        hardware: device in question.
    """
    device = hardware.described() if isinstance(hardware, CoveredHardware) else CoveredHardware.of(hardware)
    if not trained:
        return Standing(Familiarity.KNOWN, "the model is for any device")
    if device.identity in {each.identity for each in trained}:
        return Standing(Familiarity.KNOWN, "the model learned from it", device.name)
    alike = [each.described() for each in trained if each.architecture == device.architecture]
    if not alike:
        archs = ", ".join(dict.fromkeys(each.arch for each in trained))
        known = ", ".join(labels(trained))
        detail = f"the model knows the architecture {archs} ({known}), not {describe([device])}"
        return Standing(Familiarity.UNKNOWN, detail)
    distance, nearest = min(((_distance(device, each), each.name) for each in alike), key=lambda pair: pair[0])
    if wrong := _not_spanned(device, alike):
        return Standing(Familiarity.NEAR, wrong, nearest, distance)
    names = set(labels(alike))
    of_arch = [check for check in checks if check.device in names]
    failed = [check for check in of_arch if not check.supports]
    if failed or not of_arch:
        what = failed[0].describe() if failed else f"no check leaves out one of {', '.join(sorted(names))}"
        detail = f"{device.name} is like {nearest}, but nothing shows that the model carries over: {what}"
        return Standing(Familiarity.NEAR, detail, nearest, distance)
    shown = "; ".join(check.describe() for check in of_arch)
    return Standing(Familiarity.KNOWN, f"it is within what the model knows, and {shown}", nearest, distance)


def best_standing(standings: Iterable[Standing]) -> Standing | None:
    """Return the best standing, the first of equals; None without models."""
    order = tuple(Familiarity)
    return min(standings, key=lambda each: (order.index(each.familiarity), each.distance), default=None)


def nearest_first(standings: Iterable[tuple[Standing, _Model]]) -> list[tuple[Standing, _Model]]:
    """Return the models that are near to a device, nearest first, each with its standing."""
    return sorted((pair for pair in standings if pair[0].is_near), key=lambda pair: pair[0].distance)


def labels(devices: Iterable[CoveredHardware]) -> list[str]:
    """Return a distinct label for each device: its name, or a description if two share a name."""
    known = list(dict.fromkeys(devices))
    names = [device.name for device in known]
    return [name if names.count(name) == 1 else describe([device]) for name, device in zip(names, known, strict=True)]


def _not_spanned(device: CoveredHardware, alike: Sequence[CoveredHardware]) -> str:
    """Describe the descriptors of a device that are unknown or outside the training range; empty if there are none."""
    outside, missing = [], []
    for descriptor in _DESCRIPTORS:
        value = getattr(device, descriptor.attribute)
        spanned = [known for each in alike if (known := getattr(each, descriptor.attribute)) is not None]
        if value is None:
            where = f"of {device.name}, and the table of known devices lacks it"
            missing.append(f"the driver does not report the {descriptor.name} {where}")
        elif not spanned:
            missing.append(f"the model does not say the {descriptor.name} of what it learned from")
        elif not _is_within(value, spanned, descriptor.tolerance):
            outside.append(_in_words(descriptor, value, spanned))
    known = [f"{' and '.join(outside)}, which the model knows"] if outside else []
    return "; ".join(known + missing)


def _is_within(value: float, spanned: Sequence[float], tolerance: float) -> bool:
    return min(spanned) * (1 - tolerance) <= value <= max(spanned) * (1 + tolerance)


def _in_words(descriptor: _Descriptor, value: float, spanned: Sequence[float]) -> str:
    """Return ``memory bandwidth 2.04 TB/s is outside 3.35 to 4.8 TB/s``."""
    shown, low, high = (descriptor.shown(number) for number in (value, min(spanned), max(spanned)))
    span = f"is not {low}" if low == high else f"is outside {low} to {high}"
    return f"{descriptor.name} {shown}{descriptor.unit} {span}{descriptor.unit}"


def _distance(device: CoveredHardware, other: CoveredHardware) -> float:
    pairs = [(getattr(device, each.attribute), getattr(other, each.attribute)) for each in _DESCRIPTORS]
    return sum(abs(math.log(value / its)) for value, its in pairs if value and its)
