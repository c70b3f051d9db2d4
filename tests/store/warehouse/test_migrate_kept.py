"""A database file of every released revision is kept, with what users have in it, and goes up and down here."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

import samples
from decided import decision
from diode_collectors.spool.reading import measurements_in
from diode_store.query import analytics
from diode_store.records import Source, TimingMethod
from diode_store.resources import bundled_data_dir
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.database import integrity_problems, make_engine
from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury
from lanes import long, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import postgres_server as postgres
    from conftest import RunCommand

DATA = Path(__file__).parents[2] / "data"
FIRST, SECOND, LAST = "0001", "0002", "0003"
"""The revisions of which files are kept: all but today's."""
OF_A_LATER_RELEASE = (10).to_bytes(16)
"""A record that 0002 stored with fields it has no columns for."""
TABLES_OF_0001 = ("warehouse", "hardware", "hardware_aliases", "environments", "problems", "configs", "measurements")
ROWS = {
    FIRST: {"problems": 35, "configs": 858, "measurements": 35, "timings": 1212},
    SECOND: {"problems": 36, "configs": 858, "measurements": 35, "timings": 1164},
    LAST: {"problems": 76, "configs": 1513, "measurements": 75, "timings": 2796},
}
MANY = 150_000
WRITERS = 4
_NUMBERS = count()
COPY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO measurements (uid, {columns}) "
    "SELECT randomblob(16), {columns} FROM n JOIN measurements AS m ON m.id = 2"
)
MIGRATE = (
    "import sys; from alembic import command; from diode_store.warehouse import migrate\n"
    "from diode_store.warehouse.database import make_engine\n"
    "engine = make_engine(sys.argv[1]); print('ready', flush=True)\n"
    "{work}\n"
)
WAYS = {"upgrade": "migrate.upgrade(engine)", "downgrade": "migrate.downgrade(engine, '0001')"}


@pytest.fixture(params=[FIRST, SECOND, LAST])
def revision(request: pytest.FixtureRequest) -> str:
    """Return the revision of a kept warehouse."""
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, revision: str, tmp_path: Path) -> Iterator[sa.Engine]:
    """Return a copy of the kept warehouse of a revision, once on each kind of database."""
    if request.param == "sqlite":
        url = str(shutil.copy(DATA / f"warehouse-{revision}.db", tmp_path / "kept.db"))
    else:
        url = restored(request.getfixturevalue("postgres_server"), revision)
    engine = make_engine(url)
    yield engine
    engine.dispose()


def restored(server: postgres.PostgresServer, revision: str) -> str:
    """Return the URL of the kept PostgreSQL warehouse, in a database of its own."""
    import psycopg

    url = server.create_database(f"kept_{next(_NUMBERS)}")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(gzip.decompress((DATA / f"warehouse-{revision}.sql.gz").read_bytes()))
    return url


def contents(engine: sa.Engine, *, without: Sequence[str] = ()) -> dict[str, list[dict[str, str]]]:
    """Return every row of the tables of revision 0001, as the driver gives it, in order, without some columns."""
    with engine.connect() as connection:
        select = "SELECT * FROM %s ORDER BY 1, 2"
        tables = (*TABLES_OF_0001, "timings")
        rows = {name: connection.exec_driver_sql(select % name).mappings().all() for name in tables}
    return {name: [_shown(row, without) for row in found] for name, found in rows.items()}


def _shown(row: sa.RowMapping, without: Sequence[str]) -> dict[str, str]:
    extra = row.get("extra")
    parsed = json.loads(extra) if isinstance(extra, str) else extra
    shown = {**row, "extra": json.dumps(parsed, sort_keys=True)}
    return {name: repr(value) for name, value in shown.items() if name not in without}


def told(engine: sa.Engine) -> dict[bytes, tuple[Any, ...]]:
    """Return by uid what an upgraded warehouse says of regime and family, and in ``extra``."""
    columns = schema.measurements.c
    with engine.connect() as connection:
        rows = connection.execute(sa.select(columns.uid, columns.regime, columns.family, columns.extra)).all()
    return {bytes(row.uid): tuple(row[1:]) for row in rows}


def structure(engine: sa.Engine) -> dict[str, Any]:
    """Return the tables with their columns, keys and indexes, as the database describes them."""
    inspector = sa.inspect(engine)
    names = [name for name in inspector.get_table_names() if name != schema.VERSION_TABLE]
    return {
        name: (
            sorted(
                (column["name"], repr(column["type"]), column["nullable"]) for column in inspector.get_columns(name)
            ),
            inspector.get_pk_constraint(name)["constrained_columns"],
            sorted(index["name"] or "" for index in inspector.get_indexes(name)),
            sorted(key["name"] or "" for key in inspector.get_foreign_keys(name)),
        )
        for name in names
    }


def test_the_kept_warehouse_goes_up(kept: sa.Engine, revision: str) -> None:
    """The upgrade keeps every row of every table bit for bit, and makes exactly the schema of the code."""
    before = contents(kept)
    assert {name: len(rows) for name, rows in before.items()} == {
        "warehouse": 1,
        "hardware": 3,
        "hardware_aliases": 2,
        "environments": 3,
        **ROWS[revision],
    }
    assert migrate.upgrade(kept) == migrate.Upgrade(revision, schema.HEAD_REVISION)
    after = contents(kept, without=() if revision == LAST else ("regime", "family"))
    moved = {name: value for name, value in after.items() if value != before[name]}
    if revision != SECOND:
        assert moved == {}
    else:  # but for what it had no columns for
        [changed] = [
            new for new, old in zip(moved.pop("measurements"), before["measurements"], strict=True) if new != old
        ]
        assert (changed["uid"], moved) == (repr(OF_A_LATER_RELEASE), {})
    assert migrate.differences(kept) == []
    assert integrity_problems(kept) == []


def test_the_kept_warehouse_goes_down_again(kept: sa.Engine, revision: str) -> None:
    """Going back leaves the rows and the structure that were there before the upgrade."""
    rows, tables = contents(kept), structure(kept)
    migrate.upgrade(kept)
    assert migrate.downgrade(kept, revision) == migrate.Upgrade(schema.HEAD_REVISION, revision)
    assert (contents(kept), structure(kept)) == (rows, tables)
    assert migrate.current(kept) == revision
    migrate.upgrade(kept)
    assert migrate.differences(kept) == []


@pytest.mark.parametrize("revision", [FIRST, SECOND], indirect=True)
def test_old_sweeps_flushed_by_writing_and_bundled_problems_have_families(kept: sa.Engine) -> None:
    """What sweeps did before is known, and what was bundled is named by its lists; of the others nobody knows."""
    shipped = measurements_in(bundled_data_dir() / "h200-2026-11-0000.seg")
    bundled = {m.uid: ("write_flush", m.family, None) for m in shipped}
    migrate.upgrade(kept)
    found = told(kept)
    assert len(found.keys() & bundled.keys()) > 10
    assert {uid: found[uid] for uid in found.keys() & bundled.keys()} == {
        u: v for u, v in bundled.items() if u in found
    }
    others = found.keys() - bundled.keys() - {OF_A_LATER_RELEASE}
    assert {found[uid][:2] for uid in others} == {(None, None)}


@pytest.mark.parametrize("revision", [SECOND], indirect=True)
def test_what_an_older_release_had_no_columns_for_gets_them(kept: sa.Engine) -> None:
    """Regime and family of a newer record, which revision 0002 kept in ``extra``, leave it; the rest stays there."""
    migrate.upgrade(kept)
    rest = {"timing_method": {"clock": "wall"}, "later": [1, {"still": "kept"}]}
    assert told(kept)[OF_A_LATER_RELEASE] == ("graph", "llama3-8b", rest)


@pytest.mark.parametrize("revision", [SECOND], indirect=True)
def test_going_back_keeps_regime_and_family(kept: sa.Engine) -> None:
    """What an upgrade could not find again is in ``extra`` meanwhile, where the next upgrade takes it from."""
    migrate.upgrade(kept)
    graph = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="graph")
    whole = samples.measurement(1000, timing_method=graph, family="drawn", source=Source.SWEEP, extra={"a": 1})
    named = samples.measurement(1001, family="drawn")
    with Store(kept) as store:
        store.write([whole, named])
    before = told(kept)
    assert (before[whole.uid], before[named.uid]) == (("graph", "drawn", {"a": 1}), (None, "drawn", None))
    assert [loss for loss in migrate.losses(kept, SECOND) if loss.table != "decisions"] == []
    migrate.downgrade(kept, SECOND)
    extras = {bytes(row["uid"]): row["extra"] for row in _rows(kept)}
    assert extras[whole.uid] == {"a": 1, "timing_method": {"regime": "graph"}, "family": "drawn"}
    assert extras[named.uid] == {"family": "drawn"}
    migrate.upgrade(kept)
    assert told(kept) == before


def _rows(engine: sa.Engine) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT uid, extra FROM measurements WHERE extra IS NOT NULL").mappings()
        return [
            {**row, "extra": json.loads(row["extra"]) if isinstance(row["extra"], str) else row["extra"]}
            for row in rows
        ]


def test_an_upgraded_warehouse_is_used(kept: sa.Engine, revision: str) -> None:
    """What an older release stored is read as records, is known as duplicates, and takes new measurements."""
    migrate.upgrade(kept)
    old = list(iter_measurements(kept))
    hosts = [measurement.host for measurement in old]
    assert {"größe-7", "хост", "計算機-3", "معالج", "node \U0001f680", "a'b\"c;--", "tab\there", "line\nbreak"} <= set(
        hosts
    )
    with Store(kept) as store:
        assert store.write(old).duplicates == len(old) == ROWS[revision]["measurements"]
        report = store.write([samples.measurement(1000)])
        assert (report.measurements, report.timings) == (1, 3)
        assert store.counts()["measurements"] == len(old) + 1
        assert store.write([decision(1)]).decisions == 1


def test_an_upgraded_warehouse_is_queried(tmp_path: Path, diode: RunCommand, revision: str) -> None:
    """The old rows are in the views: one answer worked out by hand from the script that made the file."""
    path = tmp_path / "kept.db"
    shutil.copy(DATA / f"warehouse-{revision}.db", path)
    refused = diode("query", "SELECT 1", "--database", path)
    assert refused.code == 1
    assert f"has schema revision {revision} and this torch-diode needs {schema.HEAD_REVISION}" in refused.err
    assert diode("db", "upgrade", "--database", path).code == 0
    with closing(analytics.connect(str(path))) as connection:
        found = connection.execute(
            "SELECT hardware, torch, template, runtime_us FROM fastest_configs WHERE m = 68 AND n = 256"
        ).fetchall()
    assert found == [("NVIDIA H100 80GB HBM3", "2.13.0+cu130", "aten::mm", 10.5)]


def test_going_back_loses_the_tombstones(kept: sa.Engine, revision: str) -> None:
    """What a downgrade drops is counted beforehand; what was deleted stays deleted until it is delivered again."""
    migrate.upgrade(kept)
    with kept.begin() as connection:
        assert bury(connection, [4, 5], "prune")[0] == 2
    stones = 2 if revision == FIRST else 3
    assert [(loss.table, loss.rows) for loss in migrate.losses(kept, FIRST)] == [
        ("decisions", 0),
        ("tombstones", stones),
    ]
    migrate.downgrade(kept, FIRST)
    migrate.upgrade(kept)
    with kept.connect() as connection:
        left = connection.scalar(sa.select(sa.func.count()).select_from(schema.measurements))
        assert left == ROWS[revision]["measurements"] - 2
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.tombstones)) == 0


@pytest.mark.parametrize("revision", [LAST], indirect=True)
def test_going_back_loses_the_decisions(kept: sa.Engine) -> None:
    """How many there are is said beforehand; measurements stay as they are, and so do the configs that were named."""
    before = contents(kept)
    migrate.upgrade(kept)
    with Store(kept) as store:
        store.write([decision(number) for number in range(3)])
    [loss] = migrate.losses(kept, LAST)
    assert (loss.table, loss.rows) == ("decisions", 3)
    migrate.downgrade(kept, LAST)
    after = contents(kept)
    assert (after["measurements"], after["timings"]) == (before["measurements"], before["timings"])
    migrate.upgrade(kept)
    with Store(kept) as store:
        assert store.counts()["decisions"] == 0


def upgraded(url: str) -> str:
    """Upgrade in a process of its own."""
    engine = make_engine(url)
    try:
        return migrate.upgrade(engine).after
    finally:
        engine.dispose()


@long
def test_many_upgrade_the_kept_warehouse_at_once(kept: sa.Engine) -> None:
    """Daemons that start at the same time on an old warehouse bring it to the newest revision once."""
    before = contents(kept, without=("regime", "family", "extra"))
    url = kept.url.render_as_string(hide_password=False)
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        assert pool.map(upgraded, [url] * WRITERS) == [schema.HEAD_REVISION] * WRITERS
    assert contents(kept, without=("regime", "family", "extra")) == before


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the kept file with so many measurements that its upgrade takes a while."""
    path = tmp_path_factory.mktemp("larger") / "larger.db"
    shutil.copy(DATA / "warehouse-0001.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(measurements)") if row[1] not in {"id", "uid"}]
        columns = ", ".join(names)
        connection.execute(COPY.format(columns=columns), (MANY,))
    return path


def digest(path: Path) -> tuple[Any, ...]:
    """Return what tells the contents of a large file."""
    query = "SELECT count(*), sum(id), min(hex(uid)), max(hex(uid)), sum(problem_id) FROM measurements"
    return (*samples.sql(path, query)[0], *samples.sql(path, "SELECT count(*), sum(config_id) FROM timings")[0])


@pytest.mark.parametrize("kills", sizes(2, 40))
@pytest.mark.parametrize("way", WAYS)
def test_killed_migrations_leave_the_old_or_the_new(larger: Path, tmp_path: Path, way: str, kills: int) -> None:
    """SIGKILL at any moment of an upgrade or a downgrade leaves one of the two revisions whole, with every row."""
    expected = digest(larger)
    engine = make_engine(str(shutil.copy(larger, tmp_path / "timed.db")))
    tables = {FIRST: structure(engine)}
    started = time.monotonic()
    migrate.upgrade(engine)
    took = time.monotonic() - started
    tables[schema.HEAD_REVISION] = structure(engine)
    engine.dispose()
    before, after = list(tables) if way == "upgrade" else list(tables)[::-1]
    start = larger if way == "upgrade" else tmp_path / "timed.db"
    ended = set()
    for number in range(kills):
        path = Path(shutil.copy(start, tmp_path / f"killed-{number}.db"))
        kill_while(WAYS[way], path, 1.5 * took * number / kills)
        engine = make_engine(str(path))
        revision = str(migrate.current(engine))
        assert structure(engine) == tables[revision]
        assert integrity_problems(engine) == []
        assert digest(path) == expected
        assert migrate.upgrade(engine).after == schema.HEAD_REVISION
        assert migrate.differences(engine) == []
        engine.dispose()
        path.unlink()
        ended.add(revision)
    assert before in ended
    assert ended <= {before, after}


def kill_while(work: str, path: Path, after_s: float) -> None:
    """Start migrating a file in another process, and end that by SIGKILL some time after it began."""
    code = MIGRATE.format(work=work)
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
