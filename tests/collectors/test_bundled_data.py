from __future__ import annotations

import json
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from run_ingest import ingest

from diode_collectors.ingest import measurement_of
from diode_collectors.pack import pack
from diode_collectors.segment import read_segment
from diode_collectors.spool import Spool
from diode_store.devices import known_device
from diode_store.exchange import jsonl
from diode_store.exchange.context import ImportContext
from diode_store.exchange.options import environment_file
from diode_store.records import Outcome, Source, TimingMethod
from diode_store.resources import bundled_data_dir

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Measurement

NAME = "h200-sampled-2026-11"


@pytest.fixture(scope="module")
def measurements() -> list[Measurement]:
    """Return every bundled measurement."""
    return [measurement_of(frame) for path in Spool(bundled_data_dir()).sealed() for frame in read_segment(path)]


def test_it_is_what_it_says(measurements: list[Measurement]) -> None:
    """473 measurements of 464 problems, 40,098 timings, 3,659 failures and 13,474 estimates are in it."""
    timings = [timing for measurement in measurements for timing in measurement.timings]
    assert len(measurements) == len({measurement.uid for measurement in measurements}) == 473
    assert len({measurement.problem.key for measurement in measurements}) == 464
    assert len(timings) == 40_098
    assert sum(timing.outcome is not Outcome.OK for timing in timings) == 3_659
    assert sum(timing.is_estimate for timing in timings) == 13_474
    assert len({timing.config.key for timing in timings}) == 2_899


def test_every_measurement_says_where_it_is_from(measurements: list[Measurement]) -> None:
    """Hardware, software, time, method, search space, data set and licence are the same for all and complete."""
    (hardware,) = {measurement.hardware for measurement in measurements}
    assert hardware == known_device("NVIDIA H200")
    assert (hardware.arch, hardware.multiprocessors, hardware.shared_memory_per_block_bytes) == ("sm_90", 132, 232_448)
    (environment,) = {measurement.environment for measurement in measurements}
    assert (environment.torch, environment.triton, environment.compute, environment.driver) == (
        "2.11.0+cu130",
        "3.6.0",
        "cuda 13.0",
        "580",
    )
    assert Counter(
        (m.source, str(m.measured_at), m.search_space, m.dataset, m.licence, m.timing_method) for m in measurements
    ) == {
        (
            Source.IMPORT,
            "2026-11-20 00:00:00+00:00",
            "SAMPLE:72 of EXHAUSTIVE",
            NAME,
            "Apache-2.0",
            TimingMethod("median", flush_l2=True, launch_hidden=True),
        ): 473
    }


def test_the_kernels_are_the_ones_inductor_offers(measurements: list[Measurement]) -> None:
    """Vendor kernels, Triton templates and persistent-TMA ones, by their uids."""
    templates = {timing.config.template for measurement in measurements for timing in measurement.timings}
    assert templates == {
        "aten::addmm",
        "aten::bias_addmm",
        "aten::bmm",
        "aten::mm",
        "triton::bmm",
        "triton::mm",
        "triton::mm_persistent_tma",
    }
    assert all(any(t.config.is_vendor for t in measurement.timings) for measurement in measurements)


def test_it_is_small() -> None:
    """The segments add little to the wheel."""
    assert sum(path.stat().st_size for path in bundled_data_dir().iterdir()) < 1_500_000


def test_it_can_be_made_again(measurements: list[Measurement], tmp_path: Path) -> None:
    """Exported as JSON Lines and packed with nothing else said, it holds the same measurements."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(jsonl.row_of(measurement)) + "\n" for measurement in measurements))
    packed = pack([rows], tmp_path, ImportContext(), name=NAME)
    again = [measurement_of(frame) for path in packed.segments for frame in read_segment(path)]
    assert (packed.measurements, packed.timings, packed.failures) == (473, 40_098, 3_659)
    assert again == measurements


def test_the_environment_file_is_the_one_used(measurements: list[Measurement]) -> None:
    """The file beside the data says what its measurements say."""
    assert environment_file(bundled_data_dir() / f"{NAME}.environment.json") == measurements[0].environment


def test_the_command_that_makes_it_is_documented() -> None:
    """The README names the command with each option."""
    readme = (bundled_data_dir() / "README.md").read_text()
    for option in ("--hardware", "--environment", "--measured-at", "--dataset", "--licence", "--search-space"):
        assert option in readme


def test_ingested_through_the_spool(tmp_path: Path, database_path: Path) -> None:
    """`--once --bundled` copies it into the spool and ingests it; again, it adds nothing and says so."""
    spool = tmp_path / "spool"
    where = ("--spool", spool, "--database", database_path)
    assert ingest("--dry-run", "--bundled", *where) == (
        0,
        "dry run: 473 new, 0 already stored; 40,098 new timings, 1 segment done\n",
        "",
    )
    assert not spool.exists()
    assert ingest("--once", "--bundled", *where) == (
        0,
        "473 new, 0 already stored; 40,098 new timings, 1 segment done\n",
        "",
    )
    assert ingest("--once", "--bundled", *where) == (
        0,
        "0 new, 473 already stored; 0 new timings, 1 segment done\n",
        "",
    )
    assert Spool(spool).sealed() == []
    assert len(Spool(bundled_data_dir()).sealed()) == 1
    connection = sqlite3.connect(database_path)
    counts = connection.execute("SELECT count(*), count(*) FILTER (WHERE outcome <> 'ok') FROM timings").fetchone()
    connection.close()
    assert counts == (40_098, 3_659)


def test_it_validates() -> None:
    """`diode-ingest validate` finds nothing wrong."""
    segment = f"{bundled_data_dir()}/{NAME}-0000.seg"
    assert ingest("validate", bundled_data_dir()) == (0, f"{segment}: 473 records, 40,098 timings, all good\n", "")
