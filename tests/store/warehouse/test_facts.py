"""Measurements and timings go in the fastest way each database has, and come out as they went in."""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samples
from diode_store.errors import DatabaseError, RecordError
from diode_store.records import Outcome
from diode_store.warehouse import schema
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.dimensions import Dimensions
from diode_store.warehouse.facts import insert_measurements, insert_timings
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from diode_store.warehouse.drivers.copy_format import TimingRow

BIGINT = st.integers(-(2**63), 2**63 - 1)
TIMES = st.none() | st.floats(allow_nan=False)
TIMING_ROWS = st.tuples(
    BIGINT,
    BIGINT,
    TIMES,
    st.sampled_from([outcome.value for outcome in Outcome]),
    st.integers(0, 1),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    TIMES,
    TIMES,
)
MANY_EXAMPLES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def stored_timings(connection: sa.Connection) -> list[tuple[Any, ...]]:
    """Return what is in ``timings``, by its key."""
    columns = schema.timings.c
    return [tuple(row) for row in connection.execute(sa.select(schema.timings).order_by(*list(columns)[:2]))]


def measurement_row(number: int, **overrides: Any) -> dict[str, Any]:
    """Return a row of ``measurements`` in which most is NULL."""
    given_values = {
        "uid": number.to_bytes(16, "big"),
        "hardware_id": 1,
        "environment_id": 1,
        "problem_id": 1,
        "source": "sweep",
        "ingested_at": samples.MEASURED_AT,
        "is_replay": False,
        "choice_policy": "stock",
        **overrides,
    }
    return {column.name: given_values.get(column.name) for column in schema.measurements.c if column.name != "id"}


def add_dimensions(engine: sa.Engine) -> None:
    """Insert what ``measurement_row`` refers to."""
    measured = samples.measurement(1)
    records = ([measured.hardware], [measured.environment], [measured.problem], [])
    with write_transaction(engine) as connection:
        for dimension, some in zip(Dimensions().in_order, records, strict=True):
            dimension.insert(connection, some)


@pytest.fixture
def dimensions(any_store: Store) -> Store:
    """Return a warehouse whose first hardware, environment and problem are there, with no measurement."""
    add_dimensions(any_store.engine)
    return any_store


@MANY_EXAMPLES
@given(rows=st.lists(TIMING_ROWS, max_size=12, unique_by=lambda row: row[:2]))
def test_any_rows_come_back_as_they_were(any_store: Store, rows: list[TimingRow]) -> None:
    """Every number is kept to the last bit, and NULL stays NULL, in whatever mixture the kinds of rows come."""
    with any_store.engine.connect() as connection, connection.begin() as transaction:
        insert_timings(connection, rows)
        expected = [(*row[:4], bool(row[4]), *row[5:], None) for row in sorted(rows, key=lambda row: row[:2])]
        assert stored_timings(connection) == expected
        transaction.rollback()


def test_many_rows_in_one_go(any_store: Store) -> None:
    """More rows than are packed at once all arrive, whole ones, bare ones and failures in turn."""
    kinds = ((1.5, "ok", 0, 40, 1.25, 1.75), (2.5, "ok", 1, None, None, None), (None, "timeout", 0, None, None, None))
    rows: list[Any] = [(n // 100, n % 100, *kinds[n * n % 3]) for n in range(7001)]
    with write_transaction(any_store.engine) as connection:
        insert_timings(connection, rows)
        insert_timings(connection, [])
    with any_store.engine.connect() as connection:
        assert stored_timings(connection) == [(*row[:4], bool(row[4]), *row[5:], None) for row in rows]


@pytest.mark.parametrize("repeats", [2**31, -(2**31) - 1])
def test_a_number_too_large_for_its_column(postgres_url: str, repeats: int) -> None:
    """It is a bad record, which goes to quarantine, not a database that is away; the transaction holds nothing."""
    rows: list[TimingRow] = [(1, 1, 1.0, "ok", 0, 4, 1.0, 1.0), (1, 2, 1.0, "ok", 0, repeats, None, None)]
    with Store.open(postgres_url) as store:
        with (
            pytest.raises(RecordError, match="a value of the batch cannot be stored: "),
            write_transaction(store.engine) as connection,
        ):
            insert_timings(connection, rows)
        assert store.counts()["timings"] == 0


def test_a_timing_that_is_there_already(any_store: Store) -> None:
    """The same measurement and config twice is the database's error on one line, and nothing of the batch is kept."""
    rows: list[TimingRow] = [(1, 1, 1.0, "ok", 0, None, None, None)]
    with write_transaction(any_store.engine) as connection:
        insert_timings(connection, rows)
    with (
        pytest.raises(DatabaseError, match=r"(?i)unique") as refused,
        write_transaction(any_store.engine) as connection,
    ):
        insert_timings(connection, [(1, 2, 1.0, "ok", 0, None, None, None), *rows])
    assert "\n" not in str(refused.value)
    assert any_store.counts()["timings"] == 1


def test_measurements_are_numbered_in_their_order(dimensions: Store) -> None:
    """Ids rise in the order of the rows; every column comes back, whether it differs between rows or not."""
    rows = [
        measurement_row(
            1000 - number,
            measured_at=samples.MEASURED_AT + timedelta(microseconds=number) if number % 2 else None,
            host=f"gpu {number} ä\"'\\,{{}}",
            device_uuid=[None, "", "NULL", '"'][number % 4],
            is_replay=number == 3,
            sample_seed=2**63 - 1 - number,
            flush_l2=[None, True, False][number % 3],
            superseded_by=bytes(range(number, number + 16)) if number == 5 else None,
            extra={"n": number, "text": "\\ \" ' { NULL"} if number % 2 else None,
            dataset="d",
        )
        for number in range(40)
    ]
    with write_transaction(dimensions.engine) as connection:
        ids = insert_measurements(connection, rows)
    assert sorted(ids, key=ids.__getitem__) == [row["uid"] for row in rows]
    with dimensions.engine.connect() as connection:
        stored = [dict(row) for row in connection.execute(sa.select(schema.measurements).order_by("id")).mappings()]
    for row in stored:
        row["uid"], number = bytes(row["uid"]), row.pop("id")
        assert ids[row["uid"]] == number
        for name in ("measured_at", "ingested_at"):
            row[name] = row[name] and (row[name] if row[name].tzinfo else row[name].replace(tzinfo=UTC))
    assert stored == rows


def test_what_is_there_already_gets_no_id(dimensions: Store) -> None:
    """Only new uids are returned, and the ids of the old ones stay what they were."""
    with write_transaction(dimensions.engine) as connection:
        first = insert_measurements(connection, [measurement_row(n) for n in (1, 2)])
        assert insert_measurements(connection, []) == {}
    with write_transaction(dimensions.engine) as connection:
        second = insert_measurements(connection, [measurement_row(n) for n in (3, 2, 1, 4)])
        assert insert_measurements(connection, [measurement_row(1)]) == {}
    assert [int.from_bytes(uid, "big") for uid in second] == [3, 4]
    with dimensions.engine.connect() as connection:
        stored = connection.execute(sa.select(schema.measurements.c.uid, schema.measurements.c.id)).all()
    assert {bytes(uid): number for uid, number in stored} == {**first, **second}
    assert len(set(first.values()) | set(second.values())) == 4


def test_a_deleted_measurements_id_is_never_given_again(dimensions: Store) -> None:
    """The cache knows by their ids what it has, so a new measurement must have a higher one than any before."""
    with write_transaction(dimensions.engine) as connection:
        first = insert_measurements(connection, [measurement_row(n) for n in (1, 2)])
        connection.execute(sa.delete(schema.measurements))
    with write_transaction(dimensions.engine) as connection:
        again = insert_measurements(connection, [measurement_row(n) for n in (1, 2)])
    assert min(again.values()) > max(first.values())


def test_a_missing_dimension_is_refused(any_store: Store) -> None:
    """A measurement that refers to no hardware is the database's error on one line."""
    with (
        pytest.raises(DatabaseError, match=r"(?i)foreign key") as refused,
        write_transaction(any_store.engine) as connection,
    ):
        insert_measurements(connection, [measurement_row(1)])
    assert "\n" not in str(refused.value)
    assert any_store.counts()["measurements"] == 0


def test_writers_with_the_same_uids_in_other_orders_do_not_deadlock(postgres_url: str) -> None:
    """Two daemons that are given each other's segments wait for each other, and every uid is there once."""
    failures: list[BaseException] = []
    together = threading.Barrier(4, timeout=60)

    def write(seed: int) -> None:
        with Store.open(postgres_url) as store:
            for start in range(0, 3000, 300):
                rows = [measurement_row(n, ingested_at=datetime.now(UTC)) for n in range(start, start + 300)]
                together.wait()
                rows.sort(key=lambda row: hashlib.blake2b(row["uid"] + bytes([seed])).digest())
                try:
                    with write_transaction(store.engine) as connection:
                        insert_measurements(connection, rows)
                except DatabaseError as error:
                    failures.append(error)

    with Store.open(postgres_url) as store:
        add_dimensions(store.engine)
        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.counts()["measurements"] == 3000
