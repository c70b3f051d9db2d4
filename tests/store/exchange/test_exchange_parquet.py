"""Parquet that `diode export` wrote comes back, and what is wrong with another file is named by its column."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from round_trip import EVERYTHING, everything
from stored import content

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from round_trip import RoundTrip

    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")


@pytest.fixture
def exported(store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement) -> Path:
    """Return the Parquet file of two measurements and four timings; a third is superseded."""
    store.write(everything(make_measurement))
    diode("export", "-o", str(tmp_path / "out.parquet"))
    return tmp_path / "out.parquet"


def test_round_trip(store: Store, round_trip: RoundTrip, make_measurement: MakeMeasurement) -> None:
    """Every field of every measurement that is not superseded is the same again; twice adds nothing."""
    kept = [replace(m, superseded_by=None) for m in everything(make_measurement)]
    store.write(kept)
    round_trip.through("out.parquet", EVERYTHING)


def test_real_data_survive_the_round_trip(
    diode: RunCommand, jsonl_path: Path, tmp_path: Path, another_database: str, database_url: str
) -> None:
    """Padded sizes and all; also through a pipe's file name and after another program rewrote the file."""
    diode("import", "--hardware", "h200", "--dataset", "excerpt", str(jsonl_path))
    out = tmp_path / "out.parquet"
    diode("export", "-o", str(out))
    table = pq.read_table(out)
    as_pandas_would = table.set_column(
        table.column_names.index("template"), "template", table["template"].dictionary_encode()
    )
    pq.write_table(as_pandas_would, out.with_name("again"), row_group_size=7)
    assert diode("import", str(out.with_name("again")), "--database", another_database).code == 0
    assert content(another_database) == content(database_url)


def test_dry_run_writes_nothing(diode: RunCommand, exported: Path, another_database: str) -> None:
    """It says what would be added."""
    result = diode("import", "--dry-run", str(exported), "--database", another_database)
    assert result.out == "2 measurements with 4 timings would be added\n"
    assert content(another_database) == []


def without(name: str) -> Callable[[pa.Table], pa.Table]:
    """Return what drops a column."""
    return lambda table: table.drop_columns([name])


def with_values(name: str, *values: Any) -> Callable[[pa.Table], pa.Table]:
    """Return what replaces a column's first values."""

    def change(table: pa.Table) -> pa.Table:
        position = table.column_names.index(name)
        column = pa.array([*values, *table[name].to_pylist()[len(values) :]])
        return table.set_column(position, name, column)

    return change


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without("runtime_us"), "no column runtime_us; make the file with `diode export`"),
        (lambda t: t.select(["op", "m"]), "no column measurement_uid, hardware, vendor, arch, multiprocessors, inputs"),
        (with_values("runtime_us", *["fast"] * 4), "column runtime_us must hold numbers, not string"),
        (with_values("block_m", *[1.5] * 4), "column block_m must hold whole numbers, not double"),
        (with_values("is_replay", *[1] * 4), "column is_replay must hold true or false, not int64"),
        (lambda t: t.append_column("op", t["op"]), "column op occurs twice"),
        (with_values("runtime_us", -1.0), "row 1: timing 0: runtime_us must be a finite, positive number"),
        (with_values("outcome", "sulked"), "row 1: "),
        (with_values("inputs", "[", "["), "row 1: column inputs is not JSON: "),
        (with_values("kwargs", "{}"), "row 1: column kwargs must hold a list as JSON"),
        (with_values("measurement_uid", "00", "00"), "row 1: measurement_uid must be 32 hexadecimal digits"),
        (with_values("m", 7), "row 1: m = 7 contradicts the inputs, which make it 65"),
        (with_values("measurement_uid", *(f"{i:032x}" for i in (1, 3, 1))), "the rows of a measurement are apart"),
    ],
    ids=range(13),
)
def test_what_is_wrong_is_named(
    diode: RunCommand, exported: Path, another_database: str, change: Callable[[pa.Table], pa.Table], expected: str
) -> None:
    """By column, or by row; in one line, with a remedy."""
    pq.write_table(change(pq.read_table(exported)), exported)
    result = diode("import", str(exported), "--database", another_database)
    assert result.code == 1
    first = result.err.splitlines()[0]
    assert expected in first
    assert first.startswith(f"{exported}: ")
    assert "; " in first


def test_a_bad_measurement_costs_itself_alone(diode: RunCommand, exported: Path, another_database: str) -> None:
    """The one beside it is kept."""
    pq.write_table(with_values("p10_us", float("nan"))(pq.read_table(exported)), exported)
    result = diode("import", str(exported), "--database", another_database)
    assert result.out.startswith("1 measurement with ")
    assert len(content(another_database)) == 1


def test_columns_that_only_a_warehouse_wants_may_be_missing(
    diode: RunCommand, exported: Path, another_database: str
) -> None:
    """Then they are unknown."""
    table = pq.read_table(exported)
    wanted = ["measurement_uid", "hardware", "vendor", "arch", "multiprocessors", "op", "inputs", "template"]
    pq.write_table(table.select([*wanted, "runtime_us", "outcome", "source", "block_m"]), exported)
    assert diode("import", str(exported), "--database", another_database).code == 0
    assert {m.environment.torch for m in content(another_database)} == {"unknown"}


def test_files_that_are_no_parquet(diode: RunCommand, exported: Path, another_database: str) -> None:
    """A file that was cut is named as such."""
    exported.write_bytes(exported.read_bytes()[:-100])
    result = diode("import", str(exported), "--database", another_database)
    assert result.code == 1
    assert f"{exported}: it is not a whole Parquet file (" in result.err


def test_gzip_of_parquet(diode: RunCommand, exported: Path, another_database: str) -> None:
    """Read where somebody made it, though not written."""
    packed = exported.with_suffix(".parquet.gz")
    packed.write_bytes(gzip.compress(exported.read_bytes()))
    assert diode("import", str(packed), "--database", another_database).code == 0
    assert diode("export", "-o", str(packed), "--force").code == 2
