"""Decisions on the way from a spool into the warehouse: once each, and told apart from measurements."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import msgpack
import pytest
from run_ingest import ingest
from spool_reading import spooled
from spool_samples import put, segment_of

import samples
from decided import decision
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.monitoring.daemon_log import LogObserver
from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import Metrics
from diode_collectors.ingest.report import IngestReport
from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_collectors.sweep.already import _in_segment
from diode_store.wire import codec
from diode_store.wire.segments import read_segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.warehouse.store import Store
    from diode_store.wire.codec import Record

BOTH = (samples.measurement(1), decision(1), decision(2), samples.measurement(2))


def fill(spool: Path, *records: Record) -> Path:
    """Leave records in a sealed segment."""
    with SpoolWriter(spool) as writer:
        for record in records:
            writer.append(record)
    return spool


def test_both_kinds_reach_the_warehouse(spool: Path, store: Store) -> None:
    """One segment, one batch; again, they are all there already."""
    fill(spool, *BOTH)
    expected = IngestReport(segments=1, measurements=2, timings=6, decisions=2)
    assert ingest_once(spool, store, dry_run=True) == expected
    assert store.counts()["decisions"] == 0
    assert ingest_once(spool, store) == expected
    assert (store.counts()["measurements"], store.counts()["decisions"]) == (2, 2)
    fill(spool, *BOTH, decision(3), decision(3))
    assert ingest_once(spool, store) == IngestReport(segments=1, duplicates=5, decisions=1)
    assert store.counts()["decisions"] == 3


def test_a_replay_of_decisions(spool: Path, store: Store) -> None:
    """A decision that is stored already counts as a duplicate."""
    store.write([decision(1)])
    others = [(decision(n).uid, codec.encode(decision(n))) for n in range(2, 9)]
    put(spool, "a.seg", segment_of([(decision(1).uid, codec.encode(decision(1))), *others]))
    assert ingest_once(spool, store) == IngestReport(segments=1, decisions=7, duplicates=1)


def test_bad_decisions_are_quarantined(spool: Path, store: Store) -> None:
    """A wrong value and a newer kind go to quarantine with their reasons; the rest is stored."""
    content = msgpack.unpackb(codec.encode(decision(1)))
    wrong = (decision(1).uid, msgpack.packb({**content, "candidates": -1}))
    newer = (decision(2).uid, msgpack.packb({**content, "uid": decision(2).uid, "kind": "verdict"}))
    good = (decision(3).uid, codec.encode(decision(3)))
    put(spool, "a.seg", segment_of([wrong, newer, good]))
    report = ingest_once(spool, store)
    assert (report.decisions, report.rejected_by_reason) == (1, {"bad_record": 1, "newer_record": 1})
    reasons = {
        content["uid"]: content["message"]
        for path in (spool / "quarantine").glob("*.reason.json")
        for content in [json.loads(path.read_text())]
    }
    assert reasons[decision(1).uid.hex()].startswith("decision.candidates must be a whole number from 0")
    kept = reasons[decision(2).uid.hex()]
    assert kept.endswith("upgrade it; then move it from the quarantine back into the spool")
    assert Spool(spool).trim_quarantine(2**30) == (0, 0)


def test_the_commands_count_them(spool: Path, where: Sequence[object]) -> None:
    """Where rows are counted, decisions are counted apart; where there are none, nothing is said of them."""
    fill(spool, *BOTH)
    [segment] = Spool(spool).sealed()
    assert ingest("validate", segment).out == f"{segment}: 4 records, 6 timings, 2 decisions, all good\n"
    assert json.loads(ingest("validate", segment, "--json").out)[0]["decisions"] == 2
    assert ingest("--dry-run", *where).out == (
        "dry run: 2 new, 0 already stored; 6 new timings, 2 new decisions, 1 segment done\n"
    )
    assert json.loads(ingest("--once", "--json", *where).out)["decisions"] == 2
    fill(spool, decision(4))
    assert ingest("--once", *where).out == ("0 new, 0 already stored; 0 new timings, 1 new decision, 1 segment done\n")
    fill(spool, samples.measurement(5))
    assert "decision" not in ingest("--once", *where).out


def test_packed_with_measurements(spool: Path, tmp_path: Path) -> None:
    """A pack keeps them, without their host if it is to be anonymous, and counts them."""
    fill(spool, samples.measurement(1, host="h"), decision(1, host="h"))
    ended = ingest("pack", "--anonymous", "--dataset", "d", "-o", tmp_path / "packed", spool)
    assert ended.err.endswith("1 measurements, 3 timings, 1 of them failures; 1 decision\n")
    [segment] = Spool(tmp_path / "packed").sealed()
    measurement, packed = [frame.record() for frame in read_segment(segment)]
    assert (measurement.host, packed.host, packed.uid) == (None, None, decision(1).uid)


def test_who_wants_measurements_gets_no_decision(
    spool: Path, caplog: pytest.LogCaptureFixture, diode: RunCommand, database_url: str
) -> None:
    """A spool that holds both is read for its measurements without a warning; an import says what to do instead."""
    fill(spool, *BOTH)
    assert [measurement.uid for measurement in measurements_in(spool)] == [BOTH[0].uid, BOTH[3].uid]
    [segment] = Spool(spool).sealed()
    assert _in_segment(segment, read_segment(segment)) == set()
    assert caplog.records == []
    ended = diode("import", str(segment), "--database", database_url)
    assert ended.code == 1
    assert ended.err.count("put the file into a spool and run `diode-ingest --once`, which stores all kinds") == 2
    with pytest.raises(codec.OtherKindError):
        spooled(spool)


def test_the_daemon_tells_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in the metrics, also in a pass that brought nothing else."""
    caplog.set_level(logging.INFO)
    metrics = Metrics(Health(10))
    for observer in (LogObserver(), metrics):
        observer.started([tmp_path])
        observer.passed(tmp_path, IngestReport(decisions=3), 0.1)
    [fields] = [record.fields for record in caplog.records if record.message == "ingested"]  # type: ignore[attr-defined]
    assert (fields["decisions"], fields["measurements"]) == (3, 0)
    values = {"spool": str(tmp_path), "table": "decisions"}
    assert metrics.registry.get_sample_value("diode_ingest_rows_ingested_total", values) == 3
    assert metrics.registry.get_sample_value("diode_ingest_batch_seconds_count", {"spool": str(tmp_path)}) == 1
