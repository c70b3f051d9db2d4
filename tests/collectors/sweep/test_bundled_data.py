"""The measurements that ship: what they hold, where they are from, and that they can be made and used again."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from run_ingest import ingest

from diode_collectors.ingest.pack import pack
from diode_collectors.problems.shapesets import read_shapeset
from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_collectors.sweep.agreement import Agreement, agreement_of
from diode_store.devices import known_device
from diode_store.exchange import jsonl
from diode_store.exchange.context import ImportContext
from diode_store.records import Outcome, Source, TimingMethod
from diode_store.resources import bundled_data_dir, migrations_dir
from diode_store.wire.segment_layout import pack_payload
from diode_store.wire.segments import read_segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Measurement

HERE = Path(__file__).resolve().parent
NAME = "h200-2026-11"
TIMED_BY = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="write_flush")
MEASUREMENTS, PROBLEMS, TIMINGS, ESTIMATES = 1_247, 1_247, 104_350, 38_255
LISTS = {
    "exhaustive": ("EXHAUSTIVE without TMA", 0),
    "sample-50": ("SAMPLE:50", 0),
    "sample-72": ("SAMPLE:72", 0),
    "fp32": ("SAMPLE:24", 0),
}
"""Name of a list of problems → search space and seed."""
PACKED_WITH = ("--dataset", NAME, "--licence", "Apache-2.0", "--anonymous")
COMPLETED_BY = (*(f"--families {NAME}-{name}.txt" for name in LISTS), "--regime write_flush")
"""What says the records that were made before records did say it."""


def segment() -> Path:
    """Return the one segment."""
    (path,) = Spool(bundled_data_dir()).sealed()
    return path


def readme() -> str:
    """Return what is said of the data."""
    return (bundled_data_dir() / "README.md").read_text()


def of_list(bundled: Sequence[Measurement], name: str) -> list[Measurement]:
    """Return the measurements of a list's problems."""
    return [m for m in bundled if (m.search_space, m.sample_seed) == LISTS[name]]


# What is in it


def test_it_is_what_it_says(bundled: Sequence[Measurement]) -> None:
    """1,247 problems, each measured once, 104,350 timings, none failed, 38,255 of them estimates."""
    timings = [timing for measurement in bundled for timing in measurement.timings]
    assert len(bundled) == len({measurement.uid for measurement in bundled}) == MEASUREMENTS
    assert len({measurement.problem.key for measurement in bundled}) == PROBLEMS
    assert Counter(timing.outcome for timing in timings) == {Outcome.OK: TIMINGS}
    assert sum(timing.is_estimate for timing in timings) == ESTIMATES
    assert len({timing.config.key for timing in timings}) == 7_011
    assert sum(timing.config.is_vendor for timing in timings) == 1_430


def test_it_is_large_enough_to_learn_from(bundled: Sequence[Measurement]) -> None:
    """At least 1,000 problems, 100,000 timings and 40 problems with every config there is; in less than 20 MB."""
    exhaustive = {measurement.problem.key for measurement in of_list(bundled, "exhaustive")}
    assert PROBLEMS >= 1_000
    assert TIMINGS >= 100_000
    assert len(exhaustive) == 54
    assert sum(path.stat().st_size for path in bundled_data_dir().iterdir()) < 20_000_000


def test_ops_dtypes_and_layouts(bundled: Sequence[Measurement]) -> None:
    """The README's table counts the problems by op and dtype, and its text by layout."""
    problems = {measurement.problem.key: measurement.problem for measurement in bundled}.values()
    dtypes = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    counts = Counter(
        (p.op, "TF32" if ("ALLOW_TF32", True) in p.scalars else dtypes[p.shape.dtype or ""]) for p in problems
    )
    columns = ("bf16", "fp16", "TF32", "fp32")
    for op in ("mm", "bmm", "addmm", "baddbmm"):
        row = [counts[op, column] for column in columns]
        assert f"| {op} | {' | '.join(map(str, row))} | {sum(row)} |" in readme()
    assert counts.total() == PROBLEMS
    layouts = Counter(p.shape.layout for p in problems)
    assert layouts == {"nt": 767, "nn": 349, "tn": 131}
    assert "767 nt, 349 nn, 131 tn" in readme()


def test_the_kernels_are_the_ones_inductor_offers(bundled: Sequence[Measurement]) -> None:
    """Vendor kernels, Triton templates and persistent-TMA ones, by their uids; the vendor's for every problem."""
    templates = {timing.config.template for measurement in bundled for timing in measurement.timings}
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
    assert all(any(timing.config.is_vendor for timing in measurement.timings) for measurement in bundled)


# Where it is from


def test_every_measurement_says_where_it_is_from(bundled: Sequence[Measurement]) -> None:
    """Hardware, software, method, data set and licence are the same for all and complete; nothing is flagged."""
    (hardware,) = {measurement.hardware for measurement in bundled}
    known = known_device("NVIDIA H200")
    assert known is not None
    assert hardware == replace(known, memory_bytes=150_109_880_320)  # what the driver leaves of the published 141 GB
    assert len({measurement.environment.key for measurement in bundled}) == 1
    environment = bundled[0].environment
    assert (environment.torch, environment.triton) == ("2.11.0+cu130", "3.6.0")
    assert (environment.compute, environment.driver) == ("cuda 13.0", "580.159.04")
    assert Counter((m.source, m.dataset, m.licence, m.choice_policy, m.is_replay, m.flags) for m in bundled) == {
        (Source.SWEEP, NAME, "Apache-2.0", "stock", False, ()): MEASUREMENTS
    }
    assert {m.timing_method for m in bundled} == {TIMED_BY}
    assert {str(measurement.measured_at)[:10] for measurement in bundled} == {"2026-11-20"}


def test_no_host_is_named(bundled: Sequence[Measurement]) -> None:
    """Neither a host nor one of its GPUs can be told from a record."""
    assert {(m.host, m.device_uuid) for m in bundled} == {(None, None)}
    assert [m.uid for m in bundled if m.extra or m.hardware.extra or m.environment.extra] == []


def test_every_timing_says_how_often_it_ran(bundled: Sequence[Measurement]) -> None:
    """Repeats and an order of p10, median and p90; medians are of 7 runs and more, first looks of 1 or 3."""
    for timing in (timing for measurement in bundled for timing in measurement.timings):
        assert timing.repeats is not None
        assert timing.repeats in {1, 3} if timing.is_estimate else timing.repeats >= 7
        assert 0 < (timing.p10_us or 0) <= (timing.runtime_us or 0) <= (timing.p90_us or 0)


def test_every_measurement_says_what_the_device_did(bundled: Sequence[Measurement]) -> None:
    """Clocks, temperature and what limited them are there, and nobody else used the GPU."""
    states = [measurement.device_state for measurement in bundled]
    assert Counter(state.throttle_reasons for state in states) == {"none": 1_087, "sw_power_cap": 160}
    assert {state.foreign_processes for state in states} == {0}
    assert {state.memory_clock_mhz for state in states} == {3_201}
    slow = [state for state in states if state.sm_clock_mhz != 1_980]
    assert len(slow) == 74
    assert {state.throttle_reasons for state in slow} == {"sw_power_cap"}
    assert min(state.sm_clock_mhz or 0 for state in slow) == 1_515
    assert all(30 < (state.temperature_c or 0) < 70 for state in states)


# The lists of its problems


@pytest.mark.parametrize("name", LISTS)
def test_the_lists_are_what_was_measured(bundled: Sequence[Measurement], name: str) -> None:
    """A list holds the problems of its measurements, each once, and nothing else."""
    listed = [problem.problem().key for problem in read_shapeset(bundled_data_dir() / f"{NAME}-{name}.txt")]
    assert len(listed) == len(set(listed))
    assert Counter(m.problem.key for m in of_list(bundled, name)) == dict.fromkeys(listed, 1)


@pytest.mark.parametrize("name", LISTS)
def test_a_record_says_the_family_that_its_list_does(bundled: Sequence[Measurement], name: str) -> None:
    """The family is what the problem's name in the list begins with."""
    listed = read_shapeset(bundled_data_dir() / f"{NAME}-{name}.txt")
    families = {problem.problem().key: problem.family for problem in listed}
    assert {m.problem.key: m.family for m in of_list(bundled, name)} == families
    assert None not in families.values()


def test_the_migration_knows_the_same_families(bundled: Sequence[Measurement]) -> None:
    """A warehouse that was filled before records said their family is told by the same names."""
    path = migrations_dir() / "versions" / "0003_families.txt"
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    assert dict(lines) == {m.problem.key.hex(): m.family for m in bundled}


def test_the_first_sets_families_are_counted(bundled: Sequence[Measurement]) -> None:
    """The README says how many problems of the first set are layers, of TorchBench and log-normal."""
    lists = (bundled_data_dir() / f"{NAME}-{name}.txt" for name in LISTS)
    names = [problem.name for path in lists for problem in read_shapeset(path)]
    first = Counter(name.partition("/")[0] for name in names if name.endswith("/first set"))
    assert first.total() == 457
    assert (first.pop("torchbench"), first.pop("log-normal"), first.total()) == (131, 146, 180)
    assert "180 are layers" in readme()
    assert "131 are of TorchBench" in readme()
    assert "146 whose sizes" in readme()


def test_no_measurement_is_of_no_list(bundled: Sequence[Measurement]) -> None:
    """Search spaces and seeds are those of the lists, and there is no other list."""
    assert {(m.search_space, m.sample_seed) for m in bundled} == set(LISTS.values())
    assert {path.name for path in bundled_data_dir().glob("*.txt")} == {f"{NAME}-{name}.txt" for name in LISTS}


@pytest.mark.parametrize("name", LISTS)
def test_the_commands_are_documented(name: str) -> None:
    """The README has each list's command, with the options that the list's first line names."""
    file = f"{NAME}-{name}.txt"
    heading = (bundled_data_dir() / file).read_text().splitlines()[0]
    found = re.search(r"(--search-space .*)\.$", heading)
    assert found is not None
    assert f"\ndiode-collect --shapeset {file} {found[1]} --spool SPOOL" in readme()
    assert f"--search-space {LISTS[name][0].partition(' ')[0]}" in found[1]
    assert ("--no-include-tma" in found[1]) == LISTS[name][0].endswith("without TMA")


# How repeatable it is


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    """Return how two sweeps of the same problems agree."""
    first, second = (measurements_in(HERE.parents[1] / "data" / f"{NAME}-twice-{i}.seg") for i in (1, 2))
    return agreement_of(first, second)


def test_two_sweeps_agree(agreement: Agreement) -> None:
    """Best times differ by 5 % at most, and every winner is among the other sweep's ties: the README's figures."""
    assert len(agreement.problems) == 21
    assert (round(agreement.best.median_ratio, 3), round(agreement.best.median, 4)) == (1.001, 0.0033)
    assert (round(agreement.best.p95, 3), round(agreement.best.maximum, 3)) == (0.032, 0.044)
    assert (agreement.first_in_second_share, agreement.second_in_first_share) == (1.0, 1.0)
    assert agreement.same_winner_share == 20 / 21
    assert (agreement.left_out.configs_in_one, agreement.left_out.problems_in_one) == (0, 0)  # the same sample
    for text in ("median 1.001", "median 0.33 %", "percentile 3.2 %", "maximum 4.4 %", "100 %, both ways", "20 of 21"):
        assert text in readme()


def test_two_sweeps_agree_in_each_band(agreement: Agreement) -> None:
    """The same kernel's two times differ by about 1 %, short or long."""
    for band in agreement.bands:
        assert band.median_ratio is not None
        assert band.log_ratio_std is not None
        told = f"{band.pairs} pairs: median ratio {band.median_ratio:.3f}, standard deviation {band.log_ratio_std:.1%}"
        assert told.replace("%", " %") in readme()


# Made and used again


@pytest.fixture(scope="module")
def packed_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the segment by the options that it was packed with; return the new one."""
    output = tmp_path_factory.mktemp("again")
    ended = ingest("pack", *PACKED_WITH, "-o", output, segment())
    assert (ended.code, ended.out) == (0, f"{output}/{NAME}-0000.seg\n")
    assert ended.err == f"{MEASUREMENTS:,} measurements, {TIMINGS:,} timings, 0 of them failures\n"
    return output / segment().name


def test_packed_again_it_holds_the_same(bundled: Sequence[Measurement], packed_again: Path) -> None:
    """The documented command gives the same records in the same order."""
    command = " ".join(("diode-ingest pack", *PACKED_WITH, *COMPLETED_BY, "-o . SPOOL..."))
    assert command in " ".join(readme().replace("\\\n", " ").split())
    assert tuple(frame.measurement() for frame in read_segment(packed_again)) == bundled


def test_packed_again_it_is_the_same_file(packed_again: Path) -> None:
    """The bytes are the same, where zlib compresses as the one did that made the segment."""
    frame = next(read_segment(segment()))
    if pack_payload(frame.record_bytes(), compress=True) != frame.payload:
        pytest.skip("this zlib compresses otherwise")
    assert packed_again.read_bytes() == segment().read_bytes()


def test_it_can_be_made_of_json_lines(bundled: Sequence[Measurement], tmp_path: Path) -> None:
    """Exported as JSON Lines and packed with nothing else said, a measurement is the same."""
    some = bundled[::20]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(jsonl.row_of(measurement)) + "\n" for measurement in some))
    packed = pack([rows], tmp_path, ImportContext(), name=NAME)
    assert tuple(frame.measurement() for path in packed.segments for frame in read_segment(path)) == some


def test_ingested_through_the_spool(tmp_path: Path, database_path: Path) -> None:
    """`--once --bundled` copies it into the spool and ingests it; again, it adds nothing and says so."""
    spool = tmp_path / "spool"
    where = ("--spool", spool, "--database", database_path)
    new = f"{MEASUREMENTS:,} new, 0 already stored; {TIMINGS:,} new timings, 1 segment done\n"
    assert ingest("--dry-run", "--bundled", *where) == (0, f"dry run: {new}", "")
    assert not spool.exists()
    assert ingest("--once", "--bundled", *where) == (0, new, "")
    assert ingest("--once", "--bundled", *where) == (
        0,
        f"0 new, {MEASUREMENTS:,} already stored; 0 new timings, 1 segment done\n",
        "",
    )
    assert Spool(spool).sealed() == []
    assert segment().exists()
    connection = sqlite3.connect(database_path)
    counts = connection.execute("SELECT count(*), count(*) FILTER (WHERE outcome <> 'ok') FROM timings").fetchone()
    connection.close()
    assert counts == (TIMINGS, 0)


def test_it_validates() -> None:
    """`diode-ingest validate` finds nothing wrong."""
    good = f"{segment()}: {MEASUREMENTS:,} records, {TIMINGS:,} timings, all good\n"
    assert ingest("validate", bundled_data_dir()) == (0, good, "")
