"""The kept database of the first revision, with what users have in it, goes up and down."""

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

import next_revision
import samples
from decided import decision
from diode_store.query import analytics
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.database import integrity_problems, make_engine
from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.store import Store
from lanes import long, sizes
from next_revision import NEXT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import postgres_server as postgres
    from conftest import RunCommand

DATA = Path(__file__).parents[2] / "data"
KEPT = "0001"
TABLES = ("warehouse", "hardware", "hardware_aliases", "environments", "problems", "configs", "measurements", "timings")
ROWS = {"problems": 76, "configs": 1513, "measurements": 75, "timings": 2796}
MANY = 150_000
WRITERS = 4
_NUMBERS = count()
COPY = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO measurements (uid, {columns}) "
    "SELECT randomblob(16), {columns} FROM n JOIN measurements AS m ON m.id = 2"
)
MIGRATE = (
    "import sys; from pathlib import Path; from alembic import command; from diode_store.warehouse import migrate\n"
    "from diode_store.warehouse.database import make_engine\n"
    f"sys.path.insert(0, {str(Path(next_revision.__file__).parent)!r}); import next_revision\n"
    "next_revision.use(Path(sys.argv[2])); engine = make_engine(sys.argv[1]); print('ready', flush=True)\n"
    "{work}\n"
)
WAYS = {"upgrade": "migrate.upgrade(engine)", "downgrade": f"migrate.downgrade(engine, '{KEPT}')"}


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """Return a copy of the kept warehouse, once on each kind of database."""
    if request.param == "sqlite":
        url = str(shutil.copy(DATA / f"warehouse-{KEPT}.db", tmp_path / "kept.db"))
    else:
        url = restored(request.getfixturevalue("postgres_server"))
    engine = make_engine(url)
    yield engine
    engine.dispose()


def restored(server: postgres.PostgresServer) -> str:
    """Return the URL of the kept PostgreSQL warehouse, in a database of its own."""
    import psycopg

    url = server.create_database(f"kept_{next(_NUMBERS)}")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(gzip.decompress((DATA / f"warehouse-{KEPT}.sql.gz").read_bytes()))
    return url


@pytest.fixture
def next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a made-up revision the newest, and return the folder of its migrations."""
    folder = next_revision.folder_with_next(tmp_path)
    next_revision.use(folder, monkeypatch.setattr)
    return folder


def contents(engine: sa.Engine, *, without: Sequence[str] = ()) -> dict[str, list[dict[str, str]]]:
    """Return every row of the first tables, as the driver gives it, in order, without some columns."""
    with engine.connect() as connection:
        select = "SELECT * FROM %s ORDER BY 1, 2"
        rows = {name: connection.exec_driver_sql(select % name).mappings().all() for name in TABLES}
    return {name: [_shown(row, without) for row in found] for name, found in rows.items()}


def _shown(row: sa.RowMapping, without: Sequence[str]) -> dict[str, str]:
    extra = row.get("extra")
    parsed = json.loads(extra) if isinstance(extra, str) else extra
    shown = {**row, "extra": json.dumps(parsed, sort_keys=True)}
    return {name: repr(value) for name, value in shown.items() if name not in without}


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


def test_the_kept_warehouse_goes_up(kept: sa.Engine) -> None:
    """The upgrade makes exactly the schema of the code, and keeps every row of every table."""
    counts = {name: len(rows) for name, rows in contents(kept).items()}
    assert counts == {"warehouse": 1, "hardware": 3, "hardware_aliases": 2, "environments": 3, **ROWS}
    assert migrate.upgrade(kept) == migrate.Upgrade(KEPT, schema.HEAD_REVISION)
    assert {name: len(rows) for name, rows in contents(kept).items()} == counts
    assert migrate.differences(kept) == []
    assert integrity_problems(kept) == []


@pytest.mark.usefixtures("next_one")
def test_it_goes_up_and_down_again(kept: sa.Engine) -> None:
    """An upgrade keeps every row bit for bit; going back leaves the rows and the structure of before."""
    migrate.upgrade(kept)
    migrate.downgrade(kept, KEPT)
    rows, tables = contents(kept), structure(kept)
    assert migrate.upgrade(kept) == migrate.Upgrade(KEPT, NEXT)
    new = contents(kept)
    added = {
        column for table in ("measurements", "problems") for column in new[table][0].keys() - rows[table][0].keys()
    }
    assert added == {"note", "dimensions"}
    assert {row["dimensions"] for row in new["problems"]} == {"None"}
    assert contents(kept, without=list(added)) == rows
    assert migrate.differences(kept) == []
    assert migrate.downgrade(kept, KEPT) == migrate.Upgrade(NEXT, KEPT)
    assert (contents(kept), structure(kept)) == (rows, tables)
    assert migrate.current(kept) == KEPT


@pytest.mark.usefixtures("next_one")
def test_going_back_counts_what_it_loses(kept: sa.Engine) -> None:
    """What a downgrade drops is counted beforehand; measurements stay as they are."""
    before = contents(kept)
    migrate.upgrade(kept)
    assert [(loss.table, loss.rows) for loss in migrate.losses(kept, KEPT)][:1] == [("clocks", 2)]
    migrate.downgrade(kept, KEPT)
    after = contents(kept)
    assert (after["measurements"], after["timings"]) == (before["measurements"], before["timings"])


def test_an_upgraded_warehouse_is_used(kept: sa.Engine) -> None:
    """What an older release stored is read as records, is known as duplicates, and takes new measurements."""
    migrate.upgrade(kept)
    old = list(iter_measurements(kept))
    hosts = [measurement.host for measurement in old]
    assert {"größe-7", "хост", "計算機-3", "معالج", "node \U0001f680", "a'b\"c;--", "tab\there", "line\nbreak"} <= set(
        hosts
    )
    with Store(kept) as store:
        assert store.write(old).duplicates == len(old) == ROWS["measurements"]
        report = store.write([samples.measurement(1000)])
        assert (report.measurements, report.timings) == (1, 3)
        assert store.counts()["measurements"] == len(old) + 1
        assert store.write([decision(1000)]).decisions == 1


def test_an_upgraded_warehouse_is_queried(tmp_path: Path, diode: RunCommand) -> None:
    """The old rows are in the views: one answer worked out by hand from the script that made the file."""
    path = tmp_path / "kept.db"
    shutil.copy(DATA / f"warehouse-{KEPT}.db", path)
    assert diode("db", "upgrade", "--database", path).code == 0
    with closing(analytics.connect(str(path))) as connection:
        found = connection.execute(
            "SELECT hardware, torch, template, runtime_us FROM fastest_configs WHERE m = 68 AND n = 256"
        ).fetchall()
    assert found == [("NVIDIA H100 80GB HBM3", "2.13.0+cu130", "aten::mm", 10.5)]


def test_an_older_revision_is_refused(tmp_path: Path, diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command on a warehouse that needs an upgrade says so."""
    path = tmp_path / "kept.db"
    shutil.copy(DATA / f"warehouse-{KEPT}.db", path)
    monkeypatch.setattr(schema, "HEAD_REVISION", NEXT)
    refused = diode("db", "stats", "--database", path)
    assert refused.code == 1
    assert f"has schema revision {KEPT} and this torch-diode needs {NEXT}" in refused.err


def upgraded(url: str, folder: Path) -> str:
    """Upgrade to the made-up revision in a process of its own."""
    next_revision.use(folder)
    engine = make_engine(url)
    try:
        return migrate.upgrade(engine).after
    finally:
        engine.dispose()


@long
def test_many_upgrade_the_kept_warehouse_at_once(kept: sa.Engine, next_one: Path) -> None:
    """Daemons that start at the same time on an old warehouse bring it to the newest revision once."""
    before = [row["uid"] for row in contents(kept)["measurements"]]
    url = kept.url.render_as_string(hide_password=False)
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        assert pool.starmap(upgraded, [(url, next_one)] * WRITERS) == [NEXT] * WRITERS
    assert [row["uid"] for row in contents(kept)["measurements"]] == before


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the kept file with so many measurements that its upgrade takes a while."""
    path = tmp_path_factory.mktemp("larger") / "larger.db"
    shutil.copy(DATA / f"warehouse-{KEPT}.db", path)
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(measurements)") if row[1] not in {"id", "uid"}]
        columns = ", ".join(names)
        connection.execute(COPY.format(columns=columns), (MANY,))
    return path


def digest(path: Path) -> tuple[Any, ...]:
    """Return what tells the contents of a large file."""
    query = "SELECT count(*), sum(id), min(hex(uid)), max(hex(uid)), sum(problem_id) FROM measurements"
    return (*samples.sql(path, query)[0], *samples.sql(path, "SELECT count(*), sum(config_id) FROM timings")[0])


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize("kills", sizes(2, 40))
@pytest.mark.parametrize("way", WAYS)
def test_killed_migrations_leave_the_old_or_the_new(
    larger: Path, next_one: Path, tmp_path: Path, way: str, kills: int
) -> None:
    """SIGKILL at any moment of an upgrade or a downgrade leaves one of the two revisions whole, with every row."""
    expected = digest(larger)
    engine = make_engine(str(shutil.copy(larger, tmp_path / "timed.db")))
    tables = {KEPT: structure(engine)}
    started = time.monotonic()
    migrate.upgrade(engine)
    took = time.monotonic() - started
    tables[NEXT] = structure(engine)
    engine.dispose()
    before, after = list(tables) if way == "upgrade" else list(tables)[::-1]
    start = larger if way == "upgrade" else tmp_path / "timed.db"
    ended = set()
    for number in range(kills):
        path = Path(shutil.copy(start, tmp_path / f"killed-{number}.db"))
        kill_while(WAYS[way], path, next_one, 1.5 * took * number / kills)
        engine = make_engine(str(path))
        revision = str(migrate.current(engine))
        assert structure(engine) == tables[revision]
        assert integrity_problems(engine) == []
        assert digest(path) == expected
        assert migrate.upgrade(engine).after == NEXT
        assert migrate.differences(engine) == []
        engine.dispose()
        path.unlink()
        ended.add(revision)
    assert before in ended
    assert ended <= {before, after}


def kill_while(work: str, path: Path, folder: Path, after_s: float) -> None:
    """Start migrating a file in another process, and end that by SIGKILL some time after it began."""
    code = MIGRATE.replace("{work}", work)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
