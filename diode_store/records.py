"""The records that torch-diode's components exchange, and their content keys.

A *measurement* is one autotuning event: on one ``Hardware``, in one ``Environment``, for one ``Problem``, a ``Timing``
for each ``KernelConfig`` that was tried. All of them are immutable. ``keys`` are BLAKE2b-128 digests of a versioned
canonical encoding: any machine and any version of a collector makes the same key for the same content.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import RecordError
from diode_store.kernels import CONFIG_COLUMNS, KernelConfig, Scalar, is_vendor_template, plain_scalar
from diode_store.ops import Problem, ProblemShape, TensorSpec
from diode_store.values.checks import number, shown, text
from diode_store.values.keys import KEY_BYTES, content_key

__all__ = [
    "CONFIG_COLUMNS",
    "DEPLOYED",
    "REGIMES",
    "REGIME_NAMES",
    "STOCK_POLICY",
    "UNKNOWN",
    "DeviceState",
    "Environment",
    "Hardware",
    "KernelConfig",
    "Measurement",
    "Metric",
    "Outcome",
    "Problem",
    "ProblemShape",
    "Scalar",
    "Source",
    "TensorSpec",
    "Timing",
    "TimingMethod",
    "is_regime",
    "is_vendor_template",
    "plain_scalar",
    "regime_group",
    "regime_rank",
]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

UNKNOWN = "unknown"
"""The value of an environment's attribute that is not known."""

GRAPH, READ_FLUSH, WRITE_FLUSH = "graph", "read_flush", "write_flush"
"""Values of ``TimingMethod.regime`` for sweeps on a GPU."""
REGIMES = (GRAPH, READ_FLUSH, WRITE_FLUSH)
"""These, the nearest to how a deployed kernel runs first."""
DEPLOYED = "deployed"
"""The name of ``graph`` and ``read_flush`` together: a sweep times short kernels in one and long ones in the other."""
UNKNOWN_REGIME = "unknown"  # nobody recorded how the kernels were timed
REGIME_NAMES = (DEPLOYED, *REGIMES, UNKNOWN_REGIME)

MOST_METRICS = 32
"""Limit on the metrics of a measurement."""
_MOST_NAME, _MOST_VALUE = 100, 1e18
"""Limits on the characters of a metric's name or unit, and on its values."""

STOCK_POLICY = "stock"
"""The choice policy of an unfiltered list of Inductor's kernels."""


def regime_rank(regime: str | None) -> int:
    """Return how far ``regime`` is from deployment, from 0; of several answers for a problem the nearest counts."""
    return REGIMES.index(regime) if regime in REGIMES else len(REGIMES)


def regime_group(regime: str | None) -> str:
    """Return ``deployed`` for either of its regimes, ``unknown`` for None, else the regime itself."""
    return DEPLOYED if regime in {GRAPH, READ_FLUSH} else regime or UNKNOWN_REGIME


def is_regime(regime: str | None, wanted: str | None) -> bool:
    """Return whether a timing's ``regime`` is one that the name ``wanted`` stands for; None stands for all."""
    return wanted is None or wanted in {regime, regime_group(regime)}


class Source(StrEnum):
    """Origin of a measurement."""

    FEEDBACK = "feedback"
    SWEEP = "sweep"
    PROFILE = "profile"
    IMPORT = "import"


class Outcome(StrEnum):
    """Result of timing one config; only ``OK`` has a runtime."""

    OK = "ok"
    COMPILE_ERROR = "compile_error"
    OUT_OF_RESOURCES = "out_of_resources"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    WRONG_RESULT = "wrong_result"
    FAILED_UNSPECIFIED = "failed_unspecified"


@dataclass(frozen=True)
class Hardware:
    """One device model, not one machine.

    Identity is vendor, name, arch and multiprocessors; the other attributes are filled in once known.
    """

    vendor: str
    name: str
    arch: str
    multiprocessors: int
    l2_bytes: int | None = None
    shared_memory_per_block_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bandwidth_bytes_per_s: int | None = None
    max_clock_mhz: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values without a field in this version, here and in every other record."""

    @cached_property
    def key(self) -> bytes:
        """16-byte content key over the identity."""
        return content_key("hardware", 1, [self.vendor, self.name, self.arch, self.multiprocessors])


@dataclass(frozen=True)
class Environment:
    """The software of a timing; timings are comparable within one environment."""

    torch: str = UNKNOWN
    triton: str = UNKNOWN
    compute: str = UNKNOWN
    """CUDA or ROCm version, such as ``cuda 13.0``; ``cpu`` without either."""
    driver: str = UNKNOWN
    python: str = UNKNOWN
    os: str = UNKNOWN
    template_hashes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Template uid → SHA-256 of the template's source; an attribute, not part of the identity."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def key(self) -> bytes:
        """16-byte content key over the identity."""
        return content_key("environment", 1, [self.torch, self.triton, self.compute, self.driver, self.python, self.os])


class Timing(NamedTuple):
    """Runtime or failure of one config; a tuple, because a measurement holds up to thousands of timings.

    ``runtime_us`` is None unless the outcome is ok. An estimate is an upper-side guess from one to three runs that
    stopped early, not a median.
    """

    config: KernelConfig
    runtime_us: float | None
    outcome: Outcome = Outcome.OK
    is_estimate: bool = False
    repeats: int | None = None
    p10_us: float | None = None
    p90_us: float | None = None


@dataclass(frozen=True)
class Metric:
    """One kind of value that kernels were measured to have beside their times, such as registers per thread."""

    name: str
    """An identifier, such as ``registers_per_thread``."""
    unit: str
    """Unit of the values, such as ``B`` or ``W``; empty for a count."""
    values: tuple[float | None, ...]
    """The value of each timing, in the timings' order; None if there is none."""


@dataclass(frozen=True)
class TimingMethod:
    """Method that timed the configs of a measurement."""

    statistic: str | None = None
    """The statistic of the repeats in ``runtime_us``: ``median``, ``mean`` or ``min``."""
    flush_l2: bool | None = None
    launch_hidden: bool | None = None
    """True if launches were queued behind a device sleep, so that launch gaps are not timed."""
    regime: str | None = None
    """Setting of each timed launch: ``graph``, ``read_flush`` or ``write_flush``.

    ``graph`` is a CUDA graph of launches over operands that rotate through more than the L2 cache holds.
    ``read_flush`` is two events behind a flush that reads, ``write_flush`` the same behind a flush that writes. Times
    of one kernel differ between regimes, so compare them within one only. None if unknown, or if Inductor timed it.
    """

    @property
    def has_write_flush(self) -> bool:
        """Return whether runs followed a flush that writes, as all did before regimes were recorded."""
        return self.regime == WRITE_FLUSH or (self.regime is None and bool(self.flush_l2))


@dataclass(frozen=True)
class DeviceState:
    """The state of the device during a measurement."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle_reasons: str | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One autotuning event, self-contained."""

    uid: bytes
    hardware: Hardware
    environment: Environment
    problem: Problem
    timings: Sequence[Timing]
    """A tuple, or a ``TimingTable``, which itself ensures that no config is repeated."""
    source: Source
    measured_at: datetime | None = None
    """Timezone-aware; None when an import's file does not say."""
    host: str | None = None
    device_uuid: str | None = None
    sweep_id: str | None = None
    collector_version: str | None = None
    is_replay: bool = False
    """True if the timings came back from Inductor's cache rather than from the device."""
    search_space: str | None = None
    sample_seed: int | None = None
    choice_policy: str = STOCK_POLICY
    """Source of the list of choices: ``stock``, or ``hook:<model sha>``, whose filter would bias training."""
    timing_method: TimingMethod = TimingMethod()
    device_state: DeviceState = DeviceState()
    flags: tuple[str, ...] = ()
    """Reasons not to trust it (``throttled``, ``foreign_process`` …); views leave out flagged measurements."""
    family: str | None = None
    """The family of problems it was swept for: a model (``llama3-8b``) or a kind of problems (``drawn``)."""
    dataset: str | None = None
    licence: str | None = None
    superseded_by: bytes | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    metrics: tuple[Metric, ...] = ()
    """Values beside the times, sorted by name; each name occurs once."""

    def __post_init__(self) -> None:
        """Check what no reader could repair.

        Raises:
            RecordError: a uid of another length, a time without a zone, a flag of several words, no timing, or a config
                timed twice; also metrics that ``check_metrics`` refuses.
        """
        if not isinstance(self.uid, bytes) or len(self.uid) != KEY_BYTES:
            raise RecordError(f"a measurement's uid must be {KEY_BYTES} bytes, not {self.uid!r}")
        if self.measured_at is not None and self.measured_at.tzinfo is None:
            raise RecordError(f"measured_at must name its time zone: {self.measured_at.isoformat()}")
        if not self.timings:
            raise RecordError("a measurement needs at least one timing")
        if any(not flag or "," in flag for flag in self.flags):
            raise RecordError(f"a flag is a word without a comma, not {', '.join(map(repr, self.flags))}")
        if isinstance(self.timings, tuple) and _repeats_a_config(self.timings):
            raise RecordError("a measurement must time each config once; merge repeated ones first")
        if self.metrics:
            check_metrics(self.metrics, len(self.timings))
            # One order, so that equal measurements are equal however they were stored.
            object.__setattr__(self, "metrics", tuple(sorted(self.metrics, key=attrgetter("name"))))

    def with_timings(self, timings: Sequence[Timing]) -> Measurement:
        """Return this measurement with other timings; each config keeps its metrics, and a new one has none."""
        places = {timing.config: place for place, timing in enumerate(self.timings)} if self.metrics else {}
        columns = (
            Metric(each.name, each.unit, tuple(_at(each.values, places.get(timing.config)) for timing in timings))
            for each in self.metrics
        )
        kept = tuple(each for each in columns if each.values.count(None) < len(each.values))
        return replace(self, timings=timings, metrics=kept)


def _repeats_a_config(timings: tuple[Timing, ...]) -> bool:
    """Return whether a config occurs twice; configs that differ only in ``extra`` are one kernel."""
    configs = set(map(itemgetter(0), timings))
    by_key = any(map(attrgetter("extra"), configs))
    return len({config.key for config in configs} if by_key else configs) != len(timings)


def check_metrics(metrics: Sequence[Metric], timings: int) -> None:
    """Check metrics of a measurement with some number of timings.

    Raises:
        RecordError: too many metrics, a bad name or unit, a wrong number of values, or a value that is not finite.
    """
    if len(metrics) > MOST_METRICS:
        raise RecordError(f"a measurement has at most {MOST_METRICS} metrics, not {len(metrics)}")
    for metric in metrics:
        name, unit, values = metric.name, metric.unit, metric.values
        if not isinstance(name, str) or len(name) > _MOST_NAME or not (name.isascii() and name.isidentifier()):
            raise RecordError(f"a metric's name must be an identifier, not {shown(name)}")
        what = f"metric {name}"
        if len(text(f"{what}: unit", unit)) > _MOST_NAME:
            raise RecordError(f"{what}: unit must be text of at most {_MOST_NAME} characters")
        if len(values) != timings:
            raise RecordError(f"{what} must hold a value for each of {timings} timings, not {len(values)}")
        given = [value for value in values if value is not None]
        if not given:
            raise RecordError(f"{what} has no value; leave it out")
        if not _are_finite(given):
            for value in given:
                number(what, value, least=-_MOST_VALUE, most=_MOST_VALUE)
    if len({metric.name for metric in metrics}) != len(metrics):
        raise RecordError("a measurement has each metric once")


def _are_finite(values: Sequence[float]) -> bool:
    """Return whether all values are numbers between two bounds. A sum with a NaN is NaN, and fails the comparison."""
    is_bounded = set(map(type, values)) <= {float, int} and min(values) >= -_MOST_VALUE and max(values) <= _MOST_VALUE
    return is_bounded and abs(sum(values)) < math.inf


def _at(values: Sequence[float | None], place: int | None) -> float | None:
    return None if place is None else values[place]
