"""Ingesting impossible values, and records whose uid stands for something else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spool_samples import header_bytes

import samples
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.quarantine import REASON_SUFFIX
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse.store import Store
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import FRAME_MARKER, end_to_bytes, frame_to_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement


def _spooled(folder: Path, *measurements: Measurement) -> Spool:
    with SpoolWriter(folder) as writer:
        for each in measurements:
            writer.append(each)
    return Spool(folder)


def test_a_uid_with_other_content_goes_to_quarantine(tmp_path: Path, database_url: str) -> None:
    """By its name; what is known and what is new beside it are ingested, and a dry run says the same."""
    first, other, new = samples.measurement(1), samples.measurement(1, runtimes=(9.0,)), samples.measurement(2)
    with Store.open(database_url) as store:
        store.write([first])
        spool = _spooled(tmp_path / "spool", first, other, new)
        for report in (ingest_once(spool.directory, store, dry_run=True), ingest_once(spool.directory, store)):
            assert (report.measurements, report.duplicates, report.rejected) == (1, 1, 1)
            assert report.rejected_by_reason == {"other_content": 1}
            assert report.rejections[0].message.startswith(
                f"uid {first.uid.hex()}: another record in the warehouse has this uid; "
            )
        assert store.counts()["measurements"] == 2
    [reason] = spool.quarantine_directory.glob("*.reason.json")
    assert json.loads(reason.read_text())["uid"] == first.uid.hex()


def test_impossible_values_are_counted_and_named(tmp_path: Path, database_url: str) -> None:
    """They are ingested all the same."""
    large = samples.matmul(4096, 4096, 4096)
    with Store.open(database_url) as store:
        spool = _spooled(tmp_path / "spool", samples.measurement(1, problem=large, runtimes=(0.2, 300.0, 0.3)))
        report = ingest_once(spool.directory, store)
    assert (report.measurements, report.timings, report.doubtful) == (1, 3, 2)
    assert report.doubts[0].endswith("0.2 us is under a tenth of the roofline, 141 us; it may be in milliseconds")


def test_a_segment_of_damage_is_kept_for_what_is_whole_in_it(tmp_path: Path, database_url: str) -> None:
    """When room is needed, damage goes first; records that may be mended are not taken for it."""
    first, other = samples.measurement(1), samples.measurement(1, runtimes=(9.0,))
    frames = [frame_to_bytes(each.uid, encode(each)) for each in (first, other)]
    content = b"".join((header_bytes(compress=False), frames[0], FRAME_MARKER * 150, frames[1], end_to_bytes(2)))
    spool = Spool(tmp_path)
    (tmp_path / "a.seg").write_bytes(content)
    with Store.open(database_url) as store:
        ingest_once(tmp_path, store)
    reason = json.loads((spool.quarantine_directory / f"a.seg{REASON_SUFFIX}").read_text())
    assert reason["reason"] == "other_content"
