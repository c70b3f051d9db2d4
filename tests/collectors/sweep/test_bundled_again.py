"""The measurements that ship: how repeatable they are, and that they can be packed, ingested and checked again."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from bundled_sets import FAILURES, FIRST, SETS, BundledSet
from run_ingest import ingest

from diode_collectors.ingest.pack import pack
from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_collectors.sweep.agreement import Agreement, agreement_of
from diode_store.exchange import jsonl
from diode_store.exchange.context import ImportContext
from diode_store.system.resources import bundled_data_dir
from diode_store.wire.segment_layout import pack_payload
from diode_store.wire.segments import read_segment

TESTS = Path(__file__).resolve().parents[2]
MEASUREMENTS = sum(data.measurements for data in SETS)
TIMINGS = sum(data.timings for data in SETS)


# How repeatable it is


@pytest.fixture(scope="module")
def agreement() -> Agreement:
    """Return how two sweeps of the same problems agree."""
    first, second = (measurements_in(TESTS / "data" / f"{FIRST.name}-twice-{i}.seg") for i in (1, 2))
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
        assert text in FIRST.told()


def test_two_sweeps_agree_in_each_band(agreement: Agreement) -> None:
    """The same kernel's two times differ by about 1 %, short or long."""
    for band in agreement.bands:
        assert band.median_ratio is not None
        assert band.log_ratio_std is not None
        told = f"{band.pairs} pairs: median ratio {band.median_ratio:.3f}, standard deviation {band.log_ratio_std:.1%}"
        assert told.replace("%", " %") in FIRST.told()


# Made and used again


@pytest.fixture(scope="module", params=SETS, ids=lambda data: data.name)
def packed_again(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[BundledSet, Path]:
    """Pack a segment by the options that it was packed with; return its data set and the new one."""
    data, output = request.param, tmp_path_factory.mktemp("again")
    ended = ingest("pack", *data.packed_with, "-o", output, data.segment)
    assert (ended.code, ended.out) == (0, f"{output}/{data.name}-0000.seg\n")
    failures = sum(number for outcome, number in data.outcomes.items() if outcome != "ok")
    said = f"{data.measurements:,} measurements, {data.timings:,} timings, {failures} of them failures"
    assert ended.err.splitlines()[-1] == said  # a slow machine sees progress before it
    return data, output / data.segment.name


@pytest.mark.long
def test_packed_again_it_holds_the_same(packed_again: tuple[BundledSet, Path]) -> None:
    """The documented command gives the same records in the same order."""
    data, segment = packed_again
    command = " ".join(("diode-ingest pack", *data.packed_with, *data.completed_by, "-o . SPOOL..."))
    assert command in data.told_in_words()
    assert tuple(frame.measurement() for frame in read_segment(segment)) == data.found()


@pytest.mark.long
def test_packed_again_it_is_the_same_file(packed_again: tuple[BundledSet, Path]) -> None:
    """The bytes are the same, where zlib compresses as the one did that made the segment."""
    data, segment = packed_again
    frame = next(read_segment(data.segment))
    if pack_payload(frame.record_bytes(), compress=True) != frame.payload:
        pytest.skip("this zlib compresses otherwise")
    assert segment.read_bytes() == data.segment.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("data", SETS, ids=lambda data: data.name)
def test_it_can_be_made_of_json_lines(data: BundledSet, tmp_path: Path) -> None:
    """Exported as JSON Lines and packed with nothing else said, a measurement is the same."""
    some = data.found()[::20]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(jsonl.row_of(measurement)) + "\n" for measurement in some))
    packed = pack([rows], tmp_path, ImportContext(), name=data.name)
    assert tuple(frame.measurement() for path in packed.segments for frame in read_segment(path)) == some


@pytest.mark.long
def test_ingested_through_the_spool(tmp_path: Path, database_path: Path) -> None:
    """`--once --bundled` copies it into the spool and ingests it; again, it adds nothing and says so."""
    spool = tmp_path / "spool"
    where = ("--spool", spool, "--database", database_path)
    new = f"{MEASUREMENTS:,} new, 0 already stored; {TIMINGS:,} new timings, {len(SETS)} segments done\n"
    assert ingest("--dry-run", "--bundled", *where) == (0, f"dry run: {new}", "")
    assert not spool.exists()
    again = f"0 new, {MEASUREMENTS:,} already stored; 0 new timings, {len(SETS)} segments done\n"
    for said in (new, again):
        assert ingest("--once", "--bundled", *where)[:2] == (0, said)  # a slow machine sees progress on stderr
    assert Spool(spool).sealed() == []
    assert all(data.segment.exists() for data in SETS)
    connection = sqlite3.connect(database_path)
    counts = connection.execute("SELECT count(*), count(*) FILTER (WHERE outcome <> 'ok') FROM timings").fetchone()
    connection.close()
    assert counts == (TIMINGS, FAILURES)


@pytest.mark.long
def test_it_validates() -> None:
    """`diode-ingest validate` finds nothing wrong."""
    good = "".join(f"{d.segment}: {d.measurements:,} records, {d.timings:,} timings, all good\n" for d in SETS)
    assert ingest("validate", bundled_data_dir()) == (0, good, "")
