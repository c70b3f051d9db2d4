"""A server, or the network before it, that falls silent and keeps its connections open."""

from __future__ import annotations

import re
import signal
import time
import urllib.request
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from compare import assert_exactly_once
from processes import Child, ForkServer, drained, free_port, readiness
from producing import produced

from diode_collectors.spool.spool import Spool
from diode_store.warehouse import database, migrate
from diode_store.warehouse.drivers.postgres_waits import SILENCE_S
from lanes import long
from postgres_server import PASSWORD, PostgresServer
from stalling_proxy import StallingProxy
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROMISED_S = 10.0
"""Time within which the daemon reports a silent database, and ends when asked."""
MOMENTS = {"ping": b"Q\0\0\0\x06;\0", "statement": b"INSERT INTO measurements", "copy": b"PGCOPY\n"}
"""Bytes that the client sends at the moment."""


@pytest.fixture
def proxy(server: PostgresServer) -> Iterator[StallingProxy]:
    """Return a proxy before the server."""
    with StallingProxy(server.port) as started:
        yield started


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons that know the password."""
    with ForkServer(tmp_path / "processes", {"PGPASSWORD": PASSWORD}) as started:
        yield started


def database_up(port: int) -> str:
    """Return what the daemon's metrics say of its database."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(re.findall(r"^diode_ingest_database_up (\S+)$", answer.read().decode(), re.MULTILINE)[0])


class Fallen(NamedTuple):
    """A daemon with a writer, and what is between it and its database."""

    processes: ForkServer
    spool: Path
    server: PostgresServer
    proxy: StallingProxy
    name: str
    url: str
    port: int
    writer: Child
    daemon: Child

    def is_up(self) -> bool:
        """Return True if both readiness and metrics say that the database answers."""
        seen = (readiness(self.port), database_up(self.port))
        assert seen[0][0] in {200, 503}
        return seen == ((200, "ready\n"), "1.0")

    def finish(self) -> None:
        """Drain the spool with another daemon, and compare."""
        daemon = self.processes.daemon(self.spool, self.url)
        assert self.writer.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: drained(self.spool))
        assert daemon.end(signal.SIGTERM) == 0
        assert Spool(self.spool).status().quarantined == 0
        acknowledged = self.processes.acknowledged()
        assert assert_exactly_once(self.server.url(self.name), acknowledged, produced, others=True) > 0


@pytest.fixture
def fallen(
    processes: ForkServer, spool: Path, server: PostgresServer, proxy: StallingProxy, request: pytest.FixtureRequest
) -> Fallen:
    """Return a daemon at work; the password is in the environment."""
    name = f"silent_{abs(hash(request.node.name))}"
    engine = database.make_engine(server.create_database(name))
    migrate.upgrade(engine)
    engine.dispose()
    url = server.tcp_url(name, password=None).replace(f":{server.port}/", f":{proxy.port}/")
    port = free_port()
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url, "--listen", f"127.0.0.1:{port}")
    daemon.says_more("event=ingested")
    return Fallen(processes, spool, server, proxy, name, url, port, writer, daemon)


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "way"),
    [("copy", "proxy"), *(pytest.param(moment, way, marks=long) for moment in MOMENTS for way in ("proxy", "SIGSTOP"))],
)
def test_a_database_that_falls_silent(fallen: Fallen, moment: str, way: str) -> None:
    """The daemon is not ready within ten seconds, recovers by itself, and ends within ten seconds when asked."""
    server, proxy, daemon = fallen.server, fallen.proxy, fallen.daemon
    stop, resume = (proxy.stall, proxy.resume_new) if way == "proxy" else (server.suspend, server.resume)
    assert fallen.is_up()
    try:
        proxy.stall_at(MOMENTS[moment], stop)
        assert proxy.stalled.wait(30)
        eventually(lambda: not fallen.is_up(), within_s=PROMISED_S)
        assert (readiness(fallen.port)[0], database_up(fallen.port)) == (503, "0.0")
    finally:
        resume()
    daemon.says_more("event=ingested", within_s=PROMISED_S)
    assert fallen.is_up()
    try:
        proxy.stall_at(MOMENTS[moment], stop)
        assert proxy.stalled.wait(30)
        begun = time.monotonic()
        assert daemon.end(signal.SIGTERM) == 0
        assert time.monotonic() - begun < PROMISED_S
    finally:
        proxy.resume()  # the server hears of the end; else its backend keeps locks until TCP gives up
        resume()
    fallen.finish()


@pytest.mark.long
@pytest.mark.parametrize("moment", ["copy", *(pytest.param(each, marks=long) for each in ("ping", "statement"))])
def test_a_connection_that_falls_silent(fallen: Fallen, moment: str) -> None:
    """The server answers others, so the daemon goes on over a new connection while the old one stays dead."""
    fallen.proxy.stall_at(MOMENTS[moment], fallen.proxy.stall_open)
    assert fallen.proxy.stalled.wait(30)
    fallen.daemon.says_more("event=ingested", within_s=PROMISED_S)
    assert fallen.daemon.end(signal.SIGTERM) == 0
    fallen.finish()


@pytest.mark.long
def test_a_statement_that_takes_long(fallen: Fallen) -> None:
    """A server that works, or waits for a lock, is not silent: the daemon waits, and stays ready."""
    with psycopg.connect(fallen.server.url(fallen.name).replace("+psycopg", "")) as other:
        other.execute("LOCK TABLE measurements IN EXCLUSIVE MODE")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: fallen.server.sql(waits) == [(1,)])
        failed = fallen.daemon.says("event=failed")
        time.sleep(3 * SILENCE_S)
        assert fallen.server.sql(waits) == [(1,)]
        assert fallen.is_up()
    fallen.daemon.says_more("event=ingested")
    assert fallen.daemon.says("event=failed") == failed
    assert fallen.daemon.end(signal.SIGTERM) == 0
    fallen.finish()
