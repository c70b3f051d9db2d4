from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, NamedTuple

import pytest

import postgres_server
from diode_collectors.ingest import daemon as daemon_module
from diode_collectors.ingest.daemon import run_daemon
from diode_collectors.ingest.guard import Guard
from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import Metrics
from diode_collectors.ingest.monitoring.serving import StatusServer
from diode_collectors.ingest.probe import probe
from diode_collectors.ingest.settings import DaemonSettings
from diode_store.errors import DatabaseError, SchemaError
from diode_store.system.urls import Address
from diode_store.warehouse import database, migrate
from diode_store.warehouse.store import Store
from postgres_server import PostgresServer
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Warehouse(NamedTuple):
    """A warehouse that can be taken away and brought back."""

    url: str
    take_away: Callable[[], None]
    bring_back: Callable[[], None]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[PostgresServer, str]]:
    """Return a server that tests may stop, and the address of a warehouse on it; each leaves it running."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with PostgresServer.in_temp_folder() as started:
        engine = database.make_engine(started.create_database("w"))
        migrate.upgrade(engine)
        engine.dispose()
        yield started, started.url("w")


@pytest.fixture(params=["sqlite", "postgresql"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    """Return a warehouse on each kind of database."""
    if request.param == "postgresql":
        started, url = request.getfixturevalue("server")
        return Warehouse(url, started.stop, started.start)
    path: Path = request.getfixturevalue("database_path")
    aside = tmp_path / "aside.db"
    return Warehouse(str(path), lambda: path.rename(aside) and None, lambda: aside.rename(path) and None)


@contextlib.contextmanager
def idle_daemon(spool: Path, url: str) -> Iterator[str]:
    """Run a daemon on an empty spool in this process; yield the address where it answers."""
    health, stop = Health(300), threading.Event()
    metrics = Metrics(health)
    serving = StatusServer(Address("127.0.0.1", 0), health, metrics, None)
    hasty = DaemonSettings(url, (spool,), poll_interval_s=0.02, backoff_first_s=0.02, backoff_most_s=0.05)
    arguments = (hasty, lambda: Store.open(url), stop)
    thread = threading.Thread(target=run_daemon, args=arguments, kwargs={"observers": [serving, health, metrics]})
    thread.start()
    try:
        eventually(lambda: serving.address is not None)
        yield f"http://{serving.address}"
    finally:
        stop.set()
        thread.join()
        serving.close()


def get(address: str) -> tuple[int, str]:
    """Return status and body of an answer."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - it is the daemon's
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_an_idle_daemon_notices_that_its_database_is_gone(
    spool: Path, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing to ingest: the file removed or the server stopped makes it not ready, until it is back."""
    monkeypatch.setattr(daemon_module, "PROBE_INTERVAL_S", 0.1)
    with idle_daemon(spool, warehouse.url) as address:
        eventually(lambda: get(f"{address}/readyz") == (200, "ready\n"))
        assert "diode_ingest_database_up 1.0" in get(f"{address}/metrics")[1]
        warehouse.take_away()
        try:
            eventually(lambda: get(f"{address}/readyz")[0] == 503)
            assert get(f"{address}/readyz")[1].count("\n") == 1
            assert "diode_ingest_database_up 0.0" in get(f"{address}/metrics")[1]
            assert get(f"{address}/healthz")[0] == 200
        finally:
            warehouse.bring_back()
        eventually(lambda: get(f"{address}/readyz") == (200, "ready\n"))
        assert "diode_ingest_database_up 1.0" in get(f"{address}/metrics")[1]


def test_a_paused_daemon_notices_that_its_database_is_back(
    spool: Path, database_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the disk is full no pass opens the warehouse again, and still what is told of it is true."""
    free = [2**50]
    monkeypatch.setattr(daemon_module, "PROBE_INTERVAL_S", 0.05)
    monkeypatch.setattr(daemon_module, "_GUARD_S", 0.0)
    monkeypatch.setattr(daemon_module, "Guard", functools.partial(Guard, free=lambda _path: free[0]))
    with idle_daemon(spool, str(database_path)) as address:
        eventually(lambda: get(f"{address}/readyz")[0] == 200)
        free[0] = 0
        eventually(lambda: "bytes are free" in get(f"{address}/readyz")[1])
        aside = database_path.rename(tmp_path / "aside.db")
        eventually(lambda: "diode_ingest_database_up 0.0" in get(f"{address}/metrics")[1])
        aside.rename(database_path)
        eventually(lambda: "diode_ingest_database_up 1.0" in get(f"{address}/metrics")[1])
        assert "bytes are free" in get(f"{address}/readyz")[1]


def test_a_server_that_hangs_is_waited_for_only_so_long(server: tuple[PostgresServer, str]) -> None:
    """Suspended, it neither answers nor closes its connections; the probe gives up, and works again afterwards."""
    import psutil

    started, url = server
    assert started.process is not None
    with Store.open(url) as store:
        probe(store)
        family = [psutil.Process(started.process.pid), *psutil.Process(started.process.pid).children(recursive=True)]
        for member in family:
            member.send_signal(signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(DatabaseError, match=r"w\?host=.*: no answer within 0\.2 s"):
                probe(store, timeout_s=0.2)
            assert time.monotonic() - begin < 20
        finally:
            for member in family:
                member.send_signal(signal.SIGCONT)
        eventually(lambda: "diode-probe" not in {thread.name for thread in threading.enumerate()})
        probe(store)


def test_a_probe_sees_another_schema(store: Store, database_path: Path) -> None:
    """A warehouse that was upgraded under the daemon cannot be written either."""
    import sqlite3

    probe(store)
    with contextlib.closing(sqlite3.connect(database_path)) as other:
        other.execute("UPDATE diode_schema_version SET version_num = '0000'")
        other.commit()
    with pytest.raises(SchemaError, match="0000"):
        probe(store)
