"""Fixtures every component's tests share: a real migrated warehouse, records, real data, our commands."""

from __future__ import annotations

import gc
import io
import itertools
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest
from hypothesis import settings

import cheap_compiles
import postgres_server as postgres
import samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.warehouse.store import Store
    from samples import MakeMeasurement

DATA = Path(__file__).parent / "data"
POSTGRES_TEMPLATE = "warehouse_template"
_DATABASE_NUMBERS = itertools.count(1)
_BEGAN_AT = time.monotonic()

# A test on a busy machine has no deadline; `make test-long` asks for the other profile.
settings.register_profile("quick", max_examples=10, deadline=None)
settings.register_profile("long", max_examples=400, deadline=None)
settings.load_profile("quick")


def pytest_configure(config: pytest.Config) -> None:
    """Listen to SIGINT even when started as a background job, which ignores it, and so would all children.

    Make compiles cheap, before anybody imports torch; xdist's workers inherit the settings.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        cache = tempfile.TemporaryDirectory(prefix="diode-test-kernels-")
        config.add_cleanup(cache.cleanup)
        os.environ.update(cheap_compiles.settings(Path(cache.name)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the time that campaigns may use."""
    parser.addoption("--for-seconds", type=float, help="shuffle by the date, and skip what has not begun by then")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the examples beyond a test's ``quick(N)`` to the campaigns.

    Let each day run other campaigns where not all have the time; every worker has the same order.
    """
    examples: Counter[str] = Counter()
    for item in items:
        if quick := item.get_closest_marker("quick"):
            test = item.nodeid.partition("[")[0]
            examples[test] += 1
            if examples[test] > quick.args[0]:
                item.add_marker("long")
    if config.getoption("--for-seconds"):
        random.Random(datetime.now(UTC).date().toordinal()).shuffle(items)  # noqa: S311 - no secret


def pytest_collection_finish() -> None:
    """Keep the garbage collector, a tenth of the time, from walking objects that live as long as the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


def pytest_sessionfinish() -> None:
    """Let what was kept be collected at the end; Triton counts it as leaked otherwise."""
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test for which no time is left."""
    limit_s = item.config.getoption("--for-seconds")
    if limit_s and time.monotonic() - _BEGAN_AT > limit_s:
        pytest.skip(f"the {limit_s:.0f} s for campaigns are over")


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep every test away from the settings and the warehouse of whoever runs it."""
    of_the_hook = ("MODEL", "MODE", "TOP_K", "UNKNOWN", "CORRECTIONS", "PICKS")
    for name in ("DATABASE_URL", "SPOOL", "CACHE", "LOG_LEVEL", "CONFIG", "GROUP", *of_the_hook):
        monkeypatch.delenv(f"DIODE_{name}", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config-home"))
    monkeypatch.setenv("DIODE_LISTEN", "off")  # two daemons at once would want the same port


@pytest.fixture(scope="session")
def _template_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one SQLite file a session; tests get copies of it."""
    from diode_store.warehouse import database, migrate

    path = tmp_path_factory.mktemp("template") / "warehouse.db"
    engine = database.make_engine(str(path))
    migrate.upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture
def database_path(_template_database: Path, tmp_path: Path) -> Path:
    """Return the path of an empty, migrated warehouse."""
    return Path(shutil.copy(_template_database, tmp_path / "warehouse.db"))


@pytest.fixture
def database_url(database_path: Path) -> str:
    """Return the URL of an empty, migrated warehouse."""
    return f"sqlite:///{database_path}"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Return the empty warehouse, open for writing."""
    from diode_store.warehouse.store import Store

    with Store.open(database_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """Return a PostgreSQL server of this process's tests alone, with a migrated database to copy.

    A test that stops or kills a server starts one of its own: ``PostgresServer.in_temp_folder()``.
    """
    from diode_store.warehouse import database, migrate

    reason = postgres.missing()
    if reason:
        pytest.skip(reason)
    with postgres.PostgresServer.in_temp_folder() as server:
        engine = database.make_engine(server.create_database(POSTGRES_TEMPLATE))
        migrate.upgrade(engine)
        engine.dispose()
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """Return the URL of an empty, migrated warehouse on PostgreSQL; it is dropped after the test."""
    name = f"warehouse_{next(_DATABASE_NUMBERS)}"
    yield postgres_server.create_database(name, POSTGRES_TEMPLATE)
    postgres_server.drop_database(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty, migrated warehouse; the test runs once on each kind of database."""
    url: str = request.getfixturevalue("database_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def any_new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return where a warehouse can be made: an SQLite file that is not there, and an empty database of a server."""
    if request.param == "sqlite":
        yield str(tmp_path / "new" / "warehouse.db")
        return
    server: postgres.PostgresServer = request.getfixturevalue("postgres_server")
    name = f"new_{next(_DATABASE_NUMBERS)}"
    yield server.create_database(name)
    server.drop_database(name)


@pytest.fixture
def any_store(any_url: str) -> Iterator[Store]:
    """Return the empty warehouse, open for writing; the test runs once on each kind of database."""
    from diode_store.warehouse.store import Store

    with Store.open(any_url) as opened:
        yield opened


@pytest.fixture
def jsonl_path(tmp_path: Path) -> Path:
    """Return a copy of six real H200 problems: mm nn, nt and tn, addmm, bmm, and a bmm of one batch."""
    return Path(shutil.copy(DATA / "h200_excerpt.jsonl", tmp_path / "h200_excerpt.jsonl"))


@pytest.fixture
def make_measurement() -> MakeMeasurement:
    """Return a maker of measurements: every number makes another one, ``overrides`` replace its fields."""
    return samples.measurement


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class RunCommand(Protocol):
    """Runs ``diode`` with arguments."""

    def __call__(self, *args: str) -> CommandResult:
        """Run it and return how it ended."""


@pytest.fixture
def diode() -> RunCommand:
    """Return a function that runs ``diode ARGS...`` in this process, as the console script would."""
    from diode_store.command_line.cli import main

    def run(*args: str) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        code = ended.value.code
        return CommandResult(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())

    return run
