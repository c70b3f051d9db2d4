"""Hypothesis strategies for records: anything that a collector may ever hand over."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

from hypothesis import strategies as st

from diode_store.decisions import DecisionRecord, KeptConfig
from diode_store.records import (
    DeviceState,
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Metric,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
NAMES = TEXT.filter(bool)
SMALL = st.integers(0, 2**31 - 1)
POSITIVE = st.integers(1, 2**63 - 1)
TIMES = st.floats(1e-6, 1e12) | st.integers(1, 10**12)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
# Unknown keys travel beside `extra`, so that a key of its own called "extra" could not be told from it.
EXTRAS = st.dictionaries(TEXT, JSON_VALUES, max_size=3)
# Whole ones within 64 bits become ints.
FINITE = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: not x.is_integer() or abs(x) >= 2.0**63)
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | TEXT
METRIC_VALUES = st.floats(-1e18, 1e18) | st.integers(-(2**53), 2**53)
IDENTIFIERS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)

HARDWARE = st.builds(
    Hardware,
    vendor=NAMES,
    name=NAMES,
    arch=NAMES,
    multiprocessors=st.integers(1, 2**31 - 1),
    l2_bytes=st.none() | POSITIVE,
    shared_memory_per_block_bytes=st.none() | POSITIVE,
    memory_bytes=st.none() | POSITIVE,
    memory_bandwidth_bytes_per_s=st.none() | POSITIVE,
    max_clock_mhz=st.none() | st.integers(1, 2**31 - 1),
    extra=EXTRAS,
)
ENVIRONMENTS = st.builds(
    Environment,
    torch=TEXT,
    triton=TEXT,
    driver=TEXT,
    template_hashes=st.dictionaries(NAMES, TEXT, max_size=2),
    extra=EXTRAS,
)
CONFIGS = st.builds(
    KernelConfig,
    template=NAMES,
    block_m=st.none() | SMALL,
    num_stages=st.none() | SMALL,
    allow_tf32=st.none() | st.booleans(),
    acc_type=st.none() | TEXT,
    kwargs=st.dictionaries(NAMES, SCALARS, max_size=2).map(lambda kwargs: tuple(sorted(kwargs.items()))),
    extra=EXTRAS | st.just({}),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Return matrix products of every op, with any strides."""
    op = draw(st.sampled_from(["mm", "addmm", "bmm", "baddbmm", "int_mm"]))
    batch = (draw(st.integers(1, 2**31)),) if op in {"bmm", "baddbmm"} else ()
    m, n, k = (draw(st.integers(1, 2**31)) for _ in range(3))
    dtype = draw(st.sampled_from(["bfloat16", "float16", "float32"]))
    strides = st.tuples(*[st.integers(0, 2**40)] * (len(batch) + 2))
    matrices = [TensorSpec(dtype, (*batch, *size), draw(strides)) for size in ((m, k), (k, n))]
    bias = [TensorSpec(dtype, (n,), (1,))] if op in {"addmm", "baddbmm"} else []
    scalars = draw(st.dictionaries(NAMES, SCALARS, max_size=2))
    return Problem.create(op, (*bias, *matrices), scalars, draw(EXTRAS))


@st.composite
def timings(draw: st.DrawFn) -> tuple[Timing, ...]:
    """Return timings of different configs, failures among them."""
    found = []
    for config in draw(st.lists(CONFIGS, min_size=1, max_size=5, unique_by=lambda config: config.key)):
        outcome = draw(st.sampled_from(Outcome))
        runtime = draw(TIMES) if outcome is Outcome.OK else None
        repeats = draw(st.none() | st.integers(1, 2**31 - 1))
        spread = (draw(st.none() | TIMES), draw(st.none() | TIMES))
        found.append(Timing(config, runtime, outcome, draw(st.booleans()), repeats, *spread))
    return tuple(found)


METHODS = st.builds(
    TimingMethod, st.none() | TEXT, st.none() | st.booleans(), st.none() | st.booleans(), st.none() | TEXT
)
STATES = st.builds(
    DeviceState,
    sm_clock_mhz=st.none() | SMALL,
    temperature_c=st.none() | st.integers(-100, 200),
    throttle_reasons=st.none() | TEXT,
    foreign_processes=st.none() | SMALL,
)


@st.composite
def measurements(draw: st.DrawFn) -> Measurement:
    """Return measurements, some with metrics."""
    measured = draw(_MEASUREMENTS)
    length = len(measured.timings)
    columns = st.lists(st.none() | METRIC_VALUES, min_size=length, max_size=length).map(_with_a_value)
    metrics = draw(st.lists(st.tuples(IDENTIFIERS, TEXT, columns), max_size=3, unique_by=lambda metric: metric[0]))
    return replace(measured, metrics=tuple(Metric(name, unit, tuple(values)) for name, unit, values in metrics))


def _with_a_value(values: list[float | None]) -> list[float | None]:
    """Return the values, the first of them 0 if all are None: a metric without any value is refused."""
    return values if any(value is not None for value in values) else [0.0, *values[1:]]


_MEASUREMENTS = st.builds(
    Measurement,
    uid=st.binary(min_size=16, max_size=16),
    hardware=HARDWARE,
    environment=ENVIRONMENTS,
    problem=problems(),
    timings=timings(),
    source=st.sampled_from(Source),
    measured_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    host=st.none() | TEXT,
    sweep_id=st.none() | TEXT,
    is_replay=st.booleans(),
    sample_seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    choice_policy=TEXT,
    family=st.none() | TEXT,
    timing_method=METHODS,
    device_state=STATES,
    flags=st.lists(NAMES.filter(lambda flag: "," not in flag), max_size=2).map(tuple),
    licence=st.none() | TEXT,
    superseded_by=st.none() | st.binary(min_size=16, max_size=16),
    extra=EXTRAS,
)
MEASUREMENTS = measurements()

DECISIONS = st.builds(
    DecisionRecord,
    uid=st.binary(min_size=16, max_size=16),
    hardware=HARDWARE,
    environment=ENVIRONMENTS,
    problem=problems(),
    decided_by=TEXT,
    reason=TEXT,
    policy=TEXT,
    mode=TEXT,
    decided_at=st.datetimes(timezones=st.just(UTC)),
    candidates=SMALL,
    kept=st.lists(st.builds(KeptConfig, CONFIGS, st.none() | TIMES), max_size=4).map(tuple),
    predicted_vendor_us=st.none() | TIMES,
    p_within_2pct=st.none() | st.floats(0, 1),
    similar_to=st.none() | TEXT,
    model_sha256=st.none() | TEXT,
    seconds=st.none() | st.floats(0, 1e9),
    observed=st.booleans(),
    failure=st.none() | TEXT,
    host=st.none() | TEXT,
    hook_version=st.none() | SMALL,
    extra=EXTRAS,
)
