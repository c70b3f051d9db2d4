"""The measurements that ship: what they hold, and where they are from."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from bundled_sets import (
    ATTENTION,
    DEPLOYED,
    FIRST,
    H100_DEPLOYED,
    H100_EXHAUSTIVE,
    H100_TUNED,
    LATER,
    LOW_PRECISION,
    ODD_SIZES,
    ON_H100,
    PLAIN,
    SETS,
    BundledSet,
    all_measurements,
)

from diode_collectors.problems.families import families
from diode_collectors.spool.reading import measurements_in
from diode_store.devices.known import known_device
from diode_store.exchange.bundled import bundled_segments
from diode_store.ops import OPS
from diode_store.records import Outcome, ProblemShape, Source, TimingMethod
from diode_store.system.resources import bundled_data_dir

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
OTHER_OPS = (
    (LOW_PRECISION, "scaled_mm grouped_mm scaled_grouped_mm int_mm mm_plus_mm"),
    (ATTENTION, "convolution flex_attention flex_attention_backward flex_decoding"),
)
OF_FP32 = {"drawn-fp32", "attention-fp32", "rotary"}
OF_MODELS = {family.name for family in families()} | {"gemma3-4b", "llama3-70b-tp8", "qwen2.5-32b-tp4"}
"""Families of layers: those of `diode-collect --families`, and three that only the first data set had."""


@pytest.fixture(params=SETS, ids=lambda data: data.name)
def data(request: pytest.FixtureRequest) -> BundledSet:
    """Return a data set."""
    found: BundledSet = request.param
    return found


@pytest.fixture(params=PLAIN, ids=lambda data: data.name)
def plain(request: pytest.FixtureRequest) -> BundledSet:
    """Return a data set of mm, addmm, bmm and baddbmm."""
    found: BundledSet = request.param
    return found


def problems_of(data: BundledSet) -> dict[bytes, ProblemShape]:
    """Return its problems, each once."""
    return {measurement.problem.key: measurement.problem.shape for measurement in data.found()}


def is_unaligned(shape: ProblemShape) -> bool:
    """Return whether a row of A or B, as it lies in memory, is not whole 16 bytes."""
    rows = (shape.k if shape.layout[0] == "n" else shape.m, shape.n if shape.layout[1] == "n" else shape.k)
    return any(row * BYTES[shape.dtype or ""] % 16 for row in rows)


# What is in it


@pytest.mark.quick(2)
def test_it_is_what_it_says(data: BundledSet) -> None:
    """Measurements, problems, timings, kernels, outcomes and estimates are as many as the README has."""
    measurements, told = data.found(), data.told()
    timings = [timing for measurement in measurements for timing in measurement.timings]
    assert len(measurements) == len({measurement.uid for measurement in measurements}) == data.measurements
    assert len(problems_of(data)) == data.problems
    assert len(timings) == data.timings
    assert Counter(timing.outcome for timing in timings) == data.outcomes
    assert sum(timing.is_estimate for timing in timings) == data.estimates
    assert len({timing.config.key for timing in timings}) == data.kernels
    assert sum(timing.config.is_vendor for timing in timings) == data.of_vendor
    assert f"| What | {data.problems:,} {data.what}, " in told
    of_vendor = f"{'cuBLAS' if data in PLAIN else 'vendor kernels'} through ATen ({data.of_vendor:,})"
    templates = f"Triton templates ({data.timings - data.of_vendor:,}) and {of_vendor}"
    assert f"| Timings | {data.timings:,} of {data.kernels:,} kernels: Inductor's {templates} |" in told
    assert f"| Estimates | {data.estimates:,} timings ({data.estimates / data.timings:.0%}".replace("%", " %") in told


@pytest.mark.long
def test_each_segment_is_of_one_device() -> None:
    """The trainer reads a segment only if its first measurement is of a device that it wants."""
    first = bundled_segments()
    assert {path.name for path in first} == {path.name for path in bundled_data_dir().glob("*.seg")}
    for path, device in first.items():
        assert {measurement.hardware.key for measurement in measurements_in(path)} == {device.key}


@pytest.mark.long
def test_they_are_large_enough_to_learn_from() -> None:
    """At least 11,000 problems, 510,000 timings and 181 problems with every config there is; in less than 35 MB."""
    measurements = all_measurements()
    exhaustive = {m.problem.key for m in measurements if (m.search_space or "").startswith("EXHAUSTIVE")}
    assert len({m.problem.key for m in measurements}) >= 11_000
    assert sum(len(m.timings) for m in measurements) >= 510_000
    assert len(exhaustive) == 54 + 40 + 24 + 39 + 24
    assert sum(path.stat().st_size for path in bundled_data_dir().iterdir()) < 35_000_000


@pytest.mark.quick(2)
def test_ops_and_dtypes(plain: BundledSet) -> None:
    """The README's table counts the problems by op and dtype."""
    problems = problems_of(plain).values()
    dtypes = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    counts = Counter((p.op, "TF32" if p.tf32 else dtypes[p.dtype or ""]) for p in problems)
    columns = ("bf16", "fp16", "TF32", "fp32")
    ops = ("mm", "bmm", "addmm", "baddbmm")
    for name, of_row in (*((op, (op,)) for op in ops), ("all", ops)):
        row = [sum(counts[op, column] for op in of_row) for column in columns]
        assert f"| {name} | {' | '.join(f'{number:,}' for number in row)} | {sum(row):,} |" in plain.told()
    assert counts.total() == plain.problems


@pytest.mark.quick(2)
def test_layouts(data: BundledSet) -> None:
    """The README's text counts the problems by layout."""
    assert Counter(p.layout for p in problems_of(data).values()) == data.layouts
    assert ", ".join(f"{number:,} {layout}" for layout, number in data.layouts.items()) in data.told()


@pytest.mark.long
@pytest.mark.quick(1)
def test_how_long_the_fastest_kernels_take(data: BundledSet) -> None:
    """The README's text counts the problems by that."""
    best: dict[bytes, float] = {}
    for measurement in data.found():
        times = [t.runtime_us for t in measurement.timings if t.runtime_us is not None and not t.is_estimate]
        if times:
            best[measurement.problem.key] = min(*times, best.get(measurement.problem.key, times[0]))
    under, between = (sum(us < limit for us in best.values()) for limit in (10, 30))
    told = f"{under:,} problems under 10 us, {between - under:,} from 10 to 30 us, {len(best) - between:,} from 30 us"
    assert f"{told} up to {max(best.values()) / 1000:.1f} ms" in data.told_in_words()


@pytest.mark.long
def test_rows_that_are_not_whole_16_bytes() -> None:
    """The README says in how many problems of each set a row of A or B is such."""
    for data in PLAIN:
        assert sum(map(is_unaligned, problems_of(data).values())) == data.unaligned
    for data in LATER:
        assert f"In {data.unaligned:,} a row of A or B is not whole 16 bytes" in data.told_in_words()
    assert f"in the first set in {FIRST.unaligned}." in DEPLOYED.told_in_words()


@pytest.mark.quick(1)
def test_the_kernels_are_the_ones_inductor_offers(plain: BundledSet) -> None:
    """Vendor kernels, Triton templates and persistent-TMA ones, by their uids."""
    templates = {timing.config.template for measurement in plain.found() for timing in measurement.timings}
    assert templates == {
        "aten::addmm",
        "aten::baddbmm",
        "aten::bias_addmm",
        "aten::bmm",
        "aten::mm",
        "triton::bmm",
        "triton::mm",
        "triton::mm_persistent_tma",
    }


@pytest.mark.quick(1)
def test_the_vendors_kernel_was_timed_for_every_problem(data: BundledSet) -> None:
    """Every measurement compares with it; flex attention has none."""
    others = [measurement for measurement in data.found() if not OPS[measurement.problem.op].is_attention]
    assert all(any(timing.config.is_vendor for timing in measurement.timings) for measurement in others)


@pytest.mark.quick(1)
@pytest.mark.parametrize("data", LATER, ids=lambda data: data.name)
def test_kernels_with_tma(data: BundledSet) -> None:
    """As deployed they were timed for every mm and addmm of whole 16 bytes; the README counts exhaustive ones."""
    with_tma = {m.uid for m in data.found() if any("tma" in timing.config.template for timing in m.timings)}
    can = {m.uid for m in data.found() if m.problem.op in {"mm", "addmm"} and not is_unaligned(m.problem.shape)}
    assert with_tma == can
    if "exhaustive" not in data.lists:
        return
    exhaustive = {m.uid for m in data.of_list("exhaustive")}
    assert re.search(rf"\b{len(can & exhaustive)} of the {len(exhaustive)} exhaustive problems", data.told_in_words())


@pytest.mark.parametrize(("data", "ops"), OTHER_OPS, ids=("low precision", "attention"))
def test_the_ops_of_other_products(data: BundledSet, ops: str) -> None:
    """The README counts problems, timings and families of each op."""
    found = data.found()
    for op in ops.split():
        of_op = [m for m in found if m.problem.op == op]
        problems, families_of_op = {m.problem.key for m in of_op}, {m.family for m in of_op}
        timings = sum(len(m.timings) for m in of_op)
        assert f"| {op} | {len(problems):,} | {timings:,} | {len(families_of_op)} | " in data.told()
    assert {m.family for m in found} <= OF_MODELS
    assert {metric.name for m in found for metric in m.metrics} >= {"registers_per_thread", "spilled_registers"}


def test_the_kernels_of_other_products() -> None:
    """The vendor's kernels are those of the ops; a convolution may be a product too."""
    found = LOW_PRECISION.found()
    vendors = {t.config.template for m in found for t in m.timings if t.config.is_vendor}
    assert vendors == {f"aten::_{op}" for op in {m.problem.op for m in found}}
    templates = Counter(t.config.template for m in ATTENTION.found() for t in m.timings)
    triton = {f"triton::{name}" for name in ("convolution2d", *OTHER_OPS[1][1].split()[1:])}
    assert templates.keys() == {"aten::conv1x1_via_mm", "aten::convolution"} | triton
    assert f"for {templates['aten::conv1x1_via_mm']} the product" in ATTENTION.told()


def test_the_later_sets_have_problems_that_the_first_has_not() -> None:
    """The README says how many of the second set are in the first; the third has none of either."""
    first = problems_of(FIRST)
    new = problems_of(DEPLOYED).keys() - first.keys()
    told = f"{len(new):,} of them new and {DEPLOYED.problems - len(new)} that `{FIRST.name}` has too"
    assert told in DEPLOYED.told_in_words()
    assert not problems_of(ODD_SIZES).keys() & (first.keys() | problems_of(DEPLOYED).keys())


def test_the_families_that_only_the_last_set_has() -> None:
    """The README counts them."""
    earlier = {m.family for data in (FIRST, DEPLOYED) for m in data.found()}
    new = {m.family for m in ODD_SIZES.found()} & OF_MODELS - earlier
    assert f"layers: of {len(new)} families that the other sets have not" in ODD_SIZES.told_in_words()


@pytest.mark.quick(1)
@pytest.mark.parametrize("data", LATER, ids=lambda data: data.name)
def test_what_the_new_problems_are_for(data: BundledSet) -> None:
    """The README's table counts them by family, and those that are not whole 16 bytes.

    The H200's tables leave out what the first set has; the H100's have all problems.
    """
    first = {} if data in ON_H100 else problems_of(FIRST)
    new = {m.problem.key: m for m in data.found() if m.problem.key not in first}
    layers = [m.problem.shape for m in new.values() if m.family in OF_MODELS]
    backward = sum(shape.op == "mm" and shape.layout != "nt" for shape in layers)
    assert backward == 0 or re.search(rf"\b{backward} mm in nn or tn", data.told_in_words())
    kinds, unaligned, families_found = Counter[str](), Counter[str](), set()
    for measurement in new.values():
        family = measurement.family or ""
        families_found |= {family} & OF_MODELS
        kind = "models" if family in OF_MODELS else "fp32" if family in OF_FP32 else family
        kinds[kind] += 1
        unaligned[kind] += is_unaligned(measurement.problem.shape)
    row = r"^\| (of \d+ models|`[^|]*`) \| ([\d,]+) \| ([\d,]+) \| [^|]*\|$"
    table = [
        [cell.replace(",", "") for cell in of]
        for of in re.findall(row, data.told().replace("`, `", "` `"), re.MULTILINE)
    ]
    expected = {name: (kinds[name], unaligned[name]) for name in kinds}
    expected[f"of {len(families_found)} models"] = expected.pop("models")
    if "fp32" in expected:
        expected["drawn-fp32 attention-fp32 rotary"] = expected.pop("fp32")
    assert {
        name.replace("`", ""): (int(count), int(odd)) for name, count, odd in table if name.strip("`") not in data.lists
    } == expected


def test_a_problem_of_two_sets_is_of_one_family() -> None:
    """The family of a problem is the same wherever it was measured."""
    found: dict[bytes, str | None] = {}
    for data in (FIRST, DEPLOYED, ODD_SIZES, H100_DEPLOYED, H100_EXHAUSTIVE):
        assert [m.uid for m in data.found() if found.setdefault(m.problem.key, m.family) != m.family] == []


def test_the_problems_of_the_h100_that_the_h200_has_too() -> None:
    """The README says how many of each set of the H100 are in none of the H200."""
    on_h200 = {key for data in (FIRST, DEPLOYED, ODD_SIZES) for key in problems_of(data)}
    new, common = problems_of(H100_DEPLOYED).keys() - on_h200, problems_of(H100_TUNED).keys() & on_h200
    assert f"all but {len(new)} of them in the sets of the H200" in H100_DEPLOYED.told_in_words()
    assert f"{len(common)} of them in the sets of the H200" in H100_TUNED.told_in_words()
    every = problems_of(H100_EXHAUSTIVE).keys()
    assert every <= on_h200 & problems_of(H100_DEPLOYED).keys()
    assert f"all of them in `{H100_DEPLOYED.name}` and the sets of the H200" in H100_EXHAUSTIVE.told_in_words()
    both = problems_of(H100_DEPLOYED).keys() & problems_of(H100_TUNED).keys()
    assert f"{len(both)} are in `{H100_DEPLOYED.name}`" in H100_TUNED.told_in_words()


def test_the_wrong_results_of_the_h100() -> None:
    """The README says which kernels gave wrong results."""
    wrong = Counter(
        (m.problem.key, t.config.template) for m in H100_DEPLOYED.found() for t in m.timings if t.outcome != Outcome.OK
    )
    assert {template for _, template in wrong} == {"triton::mm_persistent_tma"}
    assert set(wrong.values()) == {10}
    assert {(p.op, p.m) for p in map(problems_of(H100_DEPLOYED).get, (key for key, _ in wrong)) if p} == {
        ("addmm", 1),
        ("mm", 1),
    }
    told = f"all ten persistent-TMA kernels of each of {len(wrong)} mm and addmm problems with M = 1"
    assert told.replace("13 mm", "thirteen mm") in H100_DEPLOYED.told_in_words()


def test_the_runs_of_the_tuned_set() -> None:
    """The README's table counts the measurements and timings of each run's sweeps, by when they began."""
    rows = re.findall(
        r"^\| `([^`]*)` \| ([\d:]+) to ([\d:]+) \| ([\d,]+) \| ([\d,]+) \| (\d+) \|", H100_TUNED.told(), re.MULTILINE
    )
    assert len(rows) == 4
    seen = 0
    for _, began, ended, measurements, timings, sweeps in rows:
        of_run = [m for m in H100_TUNED.found() if began <= f"{m.measured_at:%H:%M}" <= ended]
        counted = (len(of_run), sum(len(m.timings) for m in of_run))
        assert counted == tuple(int(number.replace(",", "")) for number in (measurements, timings))
        assert len({m.sweep_id for m in of_run}) == int(sweeps)
        seen += len(of_run)
    assert seen == H100_TUNED.measurements


# Where it is from


def test_every_measurement_says_where_it_is_from(data: BundledSet) -> None:
    """Hardware, software, method, data set and licence are the same for all and complete; flags are counted."""
    (hardware,) = {measurement.hardware for measurement in data.found()}
    known = known_device(data.device)
    assert known is not None
    assert hardware == replace(known, memory_bytes=data.memory_bytes)
    (environment,) = {measurement.environment.key: measurement.environment for measurement in data.found()}.values()
    assert environment.key == FIRST.found()[0].environment.key
    assert (environment.torch, environment.triton) == ("2.11.0+cu130", "3.6.0")
    assert (environment.compute, environment.driver) == ("cuda 13.0", "580.159.04")
    assert Counter((m.source, m.dataset, m.licence, m.choice_policy, m.is_replay) for m in data.found()) == {
        (Source.SWEEP, data.name, "Apache-2.0", "stock", False): data.measurements
    }
    assert Counter(flag for m in data.found() for flag in m.flags) == data.flags
    assert all(f"`{flag}`" in data.told() for flag in data.flags)
    assert {str(measurement.measured_at)[:10] for measurement in data.found()} == {data.day}
    assert f"| When | {data.day}, " in data.told()


def test_how_it_was_timed(data: BundledSet) -> None:
    """Every time is a median behind a flush, with its launch hidden, in the regimes that the README has."""
    hidden = TimingMethod("median", flush_l2=True, launch_hidden=True)
    assert Counter(m.timing_method for m in data.found()) == {
        replace(hidden, regime=regime): number for regime, number in data.regimes.items()
    }
    assert all(f"`{regime}`" in data.told() for regime in data.regimes)


def test_no_host_is_named(data: BundledSet) -> None:
    """Neither a host nor one of its GPUs can be told from a record."""
    assert {(m.host, m.device_uuid) for m in data.found()} == {(None, None)}
    ran = [m for m in data.found() if any(timing.outcome is Outcome.OK for timing in m.timings)]
    assert {frozenset(m.extra) - {"shared_kernels"} for m in ran} == {data.extra}
    assert sum("shared_kernels" in m.extra for m in data.found()) == data.shared
    assert not data.shared or f"In {data.shared:,} measurements" in data.told_in_words()
    assert [m.uid for m in data.found() if m.hardware.extra or m.environment.extra] == []


def test_every_timing_says_how_often_it_ran(data: BundledSet) -> None:
    """Repeats and an order of p10, median and p90; first looks are of 1 or 3 runs, medians of more."""
    looks = Counter[int]()
    for timing in (timing for measurement in data.found() for timing in measurement.timings):
        if timing.outcome is not Outcome.OK:
            continue
        assert timing.repeats is not None
        assert timing.repeats in {1, 3} if timing.is_estimate else timing.repeats >= data.fewest_runs
        assert 0 < (timing.p10_us or 0) <= (timing.runtime_us or 0) <= (timing.p90_us or 0)
        looks[timing.repeats] += timing.is_estimate
    assert re.search(rf"{looks[3]:,} (timings|first looks) have 3 runs, {looks[1]:,} have 1\.", data.told_in_words())


@pytest.mark.quick(1)
@pytest.mark.parametrize("data", LATER, ids=lambda data: data.name)
def test_the_figures_of_graphs_and_finals(data: BundledSet) -> None:
    """The README counts both regimes, the longest lists of runs, and the finals that remained undecided."""
    timings = [t for m in data.found() for t in m.timings if t.repeats is not None and not t.is_estimate]
    told = data.told_in_words()
    assert f"the regime `graph`, {data.regimes['graph']:,} measurements" in told
    assert re.search(rf"`read_flush`(:|,) {data.regimes['read_flush']:,}\.", told)
    undecided = sum(m.extra["finals"]["undecided"] > 0 for m in data.found())
    assert re.search(rf"\b[Ii]n {undecided:,} measurements some finalist is undecided", told)
    assert max(t.repeats or 0 for t in timings) == 84
    assert "a kernel has 7 to 84 runs" in DEPLOYED.told_in_words()


def test_every_measurement_says_what_the_device_did(data: BundledSet) -> None:
    """Clocks, temperature and what limited them are there, and nobody else used the GPU."""
    states = [measurement.device_state for measurement in data.found()]
    assert Counter(state.throttle_reasons for state in states) == data.throttle
    assert f"{data.throttle.get('sw_power_cap', 0)} measurements saw the software power cap" in data.told_in_words()
    assert {state.foreign_processes for state in states} == {0}
    assert {state.memory_clock_mhz for state in states} == {data.memory_mhz}
    slow = [state for state in states if state.sm_clock_mhz != 1_980]
    assert Counter(state.throttle_reasons for state in slow) == data.slow
    assert min(state.sm_clock_mhz or 0 for state in states) == data.slowest_mhz
    degrees = sorted(state.temperature_c or 0 for state in states)
    middle = degrees[len(degrees) // 2]
    assert f"{degrees[0]} to {degrees[-1]} °C, median {middle}" in data.told_in_words()
