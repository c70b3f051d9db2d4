"""Which measurements a rule names, what stays whatever it says, and what deleting them leaves behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import samples
from diode_store.errors import PruneError
from diode_store.query import analytics
from diode_store.warehouse import pruning, schema
from diode_store.warehouse.pruning import Rule, carry_out, missing_dataset, plan
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import buried, list_tombstones

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.cache.cache import Cache

OLD = timedelta(days=200)
SHAPE = samples.matmul(512, 512, 512)
DAY = timedelta(days=1)


def measure(store: Store, number: int, *, age: timedelta = timedelta(0), **overrides: Any) -> None:
    """Write a measurement of one problem that came in ``age`` ago."""
    store.write([samples.measurement(number, **{"problem": SHAPE, **overrides})])
    change = sa.update(schema.measurements).where(schema.measurements.c.uid == number.to_bytes(16))
    with store.engine.begin() as connection:
        connection.execute(change.values(ingested_at=datetime.now(UTC) - age))


def named(store: Store, **rule: Any) -> tuple[list[int], int]:
    """Return the numbers of the measurements that would go, and how many stay as the last."""
    with store.engine.connect() as connection:
        found = plan(connection, Rule(**rule))
        uids = connection.execute(sa.select(schema.measurements.c.uid).where(schema.measurements.c.id.in_(found.ids)))
        return sorted(int.from_bytes(row.uid) for row in uids), found.kept


def test_kinds_are_added_up(any_store: Store) -> None:
    """Each kind names its measurements, and two kinds name those of both."""
    measure(any_store, 1)
    measure(any_store, 2, superseded_by=bytes(16))
    measure(any_store, 3, is_replay=True)
    measure(any_store, 4, flags=("throttled",))
    assert named(any_store, superseded=True) == ([2], 0)
    assert named(any_store, replays=True) == ([3], 0)
    assert named(any_store, flagged=True) == ([4], 0)
    assert named(any_store, superseded=True, flagged=True) == ([2, 4], 0)


def test_filters_narrow_down(any_store: Store) -> None:
    """Age, data set and hardware each leave out what they do not name, alone and with a kind."""
    measure(any_store, 1)
    measure(any_store, 2, age=OLD, is_replay=True)
    measure(any_store, 3, is_replay=True, dataset="d")
    measure(any_store, 4, hardware=samples.H100, dataset="d")
    measure(any_store, 5, age=OLD, measured_at=samples.MEASURED_AT - 10 * DAY)
    assert named(any_store, older_than=OLD - DAY) == ([2, 5], 0)
    assert named(any_store, older_than=OLD + DAY) == ([], 0)
    assert named(any_store, older_than=OLD - DAY, replays=True) == ([2], 0)
    assert named(any_store, replays=True, dataset="d") == ([3], 0)
    assert named(any_store, dataset="d", keep=0) == ([3, 4], 0)
    assert named(any_store, measured_before=samples.MEASURED_AT - DAY) == ([5], 0)
    with any_store.engine.connect() as connection:
        h100 = connection.scalar(sa.select(schema.hardware.c.id).where(schema.hardware.c.name == samples.H100.name))
    assert named(any_store, hardware_ids=[h100], keep=0) == ([4], 0)


def test_who_does_not_say_when_is_not_measured_before(any_store: Store) -> None:
    """A measurement without a time is left alone by --measured-before; its arrival is always known."""
    measure(any_store, 1)
    measure(any_store, 2, age=OLD, measured_at=None)
    assert named(any_store, measured_before=datetime.now(UTC) + 400 * DAY, keep=0) == ([1], 0)
    assert named(any_store, older_than=DAY) == ([2], 0)


def test_the_last_of_a_problem_stays(any_store: Store) -> None:
    """Of measurements that would all go, the newest is kept for each problem on each hardware."""
    for number in (1, 2, 3):
        measure(any_store, number, age=OLD, measured_at=samples.MEASURED_AT + number * DAY)
    measure(any_store, 4, age=OLD, hardware=samples.H100)
    measure(any_store, 5, age=OLD, problem=samples.matmul(8, 8, 8))
    assert named(any_store, older_than=DAY) == ([1, 2], 3)
    assert named(any_store, older_than=DAY, keep=2) == ([1], 4)
    assert named(any_store, older_than=DAY, keep=0) == ([1, 2, 3, 4, 5], 0)


def test_the_most_trusted_is_what_stays(any_store: Store) -> None:
    """A replay, a flagged or a superseded measurement never stands in for the last one that may be believed."""
    measure(any_store, 1, age=OLD)
    measure(any_store, 2, is_replay=True)
    measure(any_store, 3, flags=("throttled",))
    measure(any_store, 4, superseded_by=bytes(16))
    assert named(any_store, older_than=DAY) == ([], 1)
    measure(any_store, 5)
    assert named(any_store, older_than=DAY) == ([1], 0)
    assert named(any_store, superseded=True, replays=True, flagged=True) == ([2, 3, 4], 0)


def test_untrusted_alone_is_better_than_nothing(any_store: Store) -> None:
    """Where there is nothing to believe, the least doubtful measurement stays: flagged before replayed."""
    measure(any_store, 1, is_replay=True, measured_at=samples.MEASURED_AT + DAY)
    measure(any_store, 2, flags=("throttled",))
    assert named(any_store, replays=True, flagged=True) == ([1], 1)


def test_a_rule_that_asks_for_nothing_is_refused(any_store: Store) -> None:
    """Deleting everything is not what an empty command line means."""
    with any_store.engine.connect() as connection, pytest.raises(PruneError, match="Name what goes: --superseded"):
        plan(connection, Rule(keep=0))


def test_a_data_set_that_is_not_there_is_told(any_store: Store) -> None:
    """A mistyped name does not pass for a data set that needs no pruning; some of those that are there are named."""
    for number in range(23):
        told = "no measurement belongs to the data set 'nope'; "
        there = [f"d{n:02}" for n in range(number)]
        listed = ", ".join(there[:20]) + (", ..." if number > 20 else "")
        with any_store.engine.connect() as connection:
            said = missing_dataset(connection, "nope")
            assert [name for name in there if missing_dataset(connection, name)] == []
        assert said == told + (f"there is: {listed}" if there else "none belongs to any")
        measure(any_store, number, dataset=f"d{number:02}")


def test_a_plan_says_what_goes(any_store: Store) -> None:
    """It counts measurements and timings by hardware and data set, over more than one look-up, and deletes nothing."""
    for number in range(1, 8):
        measure(any_store, number, is_replay=True, dataset="d" if number % 2 else None)
    measure(any_store, 9, is_replay=True, hardware=samples.H100)
    before = any_store.counts()
    with pytest.MonkeyPatch.context() as patch, any_store.engine.connect() as connection:
        patch.setattr(pruning, "_MEASUREMENTS_AT_ONCE", 2)
        found = plan(connection, Rule(replays=True, keep=0))
    shares = [(share.hardware, share.dataset, share.measurements, share.timings) for share in found.shares]
    assert shares == [
        ("NVIDIA H100 80GB HBM3", None, 1, 3),
        ("NVIDIA H200", None, 3, 9),
        ("NVIDIA H200", "d", 4, 12),
    ]
    assert (len(found.ids), found.timings) == (8, 24)
    assert all(share.oldest.tzinfo and share.oldest <= share.newest for share in found.shares)
    assert any_store.counts() == before


def test_carrying_it_out_leaves_the_rest(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the planned measurements go, with their timings, in several transactions; dimensions stay."""
    for number in range(1, 8):
        measure(any_store, number, is_replay=number != 4)
    monkeypatch.setattr(pruning, "_MEASUREMENTS_AT_ONCE", 2)
    monkeypatch.setattr(pruning, "_TIMINGS_AT_ONCE", 6)
    before = any_store.counts()
    with any_store.engine.connect() as connection:
        ids = plan(connection, Rule(replays=True)).ids
    done: list[float] = []
    assert list(carry_out(any_store.engine, ids, "prune --replays", done.append)) == [(2, 6)] * 3
    assert done == [2, 2, 2]
    assert any_store.counts() == {**before, "measurements": 1, "timings": 3, "failures": 1}
    with any_store.engine.connect() as connection:
        assert buried(connection, [n.to_bytes(16) for n in range(9)]) == {n.to_bytes(16) for n in (1, 2, 3, 5, 6, 7)}
        [stones] = list_tombstones(connection)
    assert (stones.reason, stones.measurements) == ("prune --replays", 6)


def test_the_views_drop_what_was_deleted(store: Store, database_url: str, cache: Cache) -> None:
    """After the next sync no view shows a deleted measurement, and what comes in later is not taken for it."""
    for number, us in ((1, 10.0), (2, 5.0), (3, 7.0)):
        measure(store, number, runtimes=(us,), flags=("hot",) if number == 2 else ())
    query = "SELECT min(runtime_us), count(*), count(DISTINCT measurement_id) FROM observations"

    def asked() -> tuple[Any, ...]:
        connection = analytics.connect(database_url)
        try:
            [row] = connection.execute(query).fetchall()
        finally:
            connection.close()
        return tuple(row)

    assert asked() == (5.0, 3, 3)
    with store.engine.connect() as connection:
        ids = plan(connection, Rule(flagged=True)).ids
    assert list(carry_out(store.engine, ids, "prune --flagged")) == [(1, 1)]
    assert asked() == (7.0, 2, 2)
    measure(store, 4, runtimes=(6.0,))
    assert asked() == (6.0, 3, 3)


def test_a_nightly_prune_reads_by_index(store: Store, database_path: Path) -> None:
    """What has aged is found through the index on arrival, not by reading every measurement."""
    query = "EXPLAIN QUERY PLAN SELECT id FROM measurements WHERE ingested_at < '2026-01-01'"
    [row] = samples.sql(database_path, query)
    assert "ix_measurements_ingested_at" in row[3]


@pytest.mark.quick(1)
def test_prunes_and_writers_at_once(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that delete the same and two that write end without a deadlock; each measurement goes once, none is lost."""
    monkeypatch.setattr(pruning, "_TIMINGS_AT_ONCE", 60)
    with Store.open(any_url) as store:
        store.write([samples.measurement(n, is_replay=n > 0, problem=SHAPE) for n in range(401)])
        with store.engine.connect() as connection:
            ids = plan(connection, Rule(replays=True)).ids

    def delete(_: int) -> int:
        with Store.open(any_url) as store:
            return sum(gone for gone, _timings in carry_out(store.engine, ids, "prune --replays"))

    def write(start: int) -> int:
        with Store.open(any_url) as store:
            again = [samples.measurement(n, is_replay=True, problem=SHAPE) for n in range(1, 401, 40)]
            return sum(store.write([samples.measurement(n), *again]).measurements for n in range(start, start + 40))

    with ThreadPoolExecutor(4) as pool:
        deleted = [pool.submit(delete, number) for number in range(2)]
        written = [pool.submit(write, start) for start in (1000, 2000)]
        assert sum(one.result() for one in deleted) == 400
        assert [one.result() for one in written] == [40, 40]
    with Store.open(any_url) as store:
        counts = store.counts()
        assert (counts["measurements"], counts["timings"]) == (81, 243)
        with store.engine.connect() as connection:
            assert len(buried(connection, [n.to_bytes(16) for n in range(401)])) == 400
