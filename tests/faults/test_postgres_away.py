from __future__ import annotations

import random
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from compare import assert_exactly_once
from processes import drained, free_port, readiness
from producing import produced

from diode_collectors.spool.spool import Spool
from diode_store.warehouse import database, migrate
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from processes import Child, ForkServer

    from postgres_server import PostgresServer


@pytest.fixture
def url(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """Return an empty warehouse on the server that may be killed."""
    url = server.create_database(f"away_{abs(hash(request.node.name))}")
    engine = database.make_engine(url)
    migrate.upgrade(engine)
    engine.dispose()
    return url


def finish(processes: ForkServer, daemon: Child, writer: Child, spool: Path, url: str) -> None:
    """Stop the writer, let the daemon do what is left, and compare."""
    assert writer.end(signal.SIGKILL) == -signal.SIGKILL
    eventually(lambda: drained(spool))
    assert daemon.end(signal.SIGTERM) == 0
    assert Spool(spool).status().quarantined == 0
    assert assert_exactly_once(url, processes.acknowledged(), produced, others=True) > 0


def at_each_commit(server: PostgresServer, database_name: str, action: str) -> None:
    """Let the server run a statement of PL/pgSQL for each new measurement, at the end of its transaction."""
    server.sql(
        f"CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {action}; END $$;"
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON measurements DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION at_commit()",
        database_name,
    )


def stored(server: PostgresServer, database_name: str) -> int:
    """Return how many rows of measurements and timings the server has, past our own code."""
    query = "SELECT (SELECT count(*) FROM measurements) + (SELECT count(*) FROM timings)"
    [(count,)] = server.sql(query, database_name)
    return int(count)


@long
def test_a_server_killed_while_the_daemon_writes(
    processes: ForkServer, spool: Path, server: PostgresServer, url: str
) -> None:
    """SIGKILL to the whole server, three times: the daemon comes back by itself, nothing is lost or twice."""
    rng = random.Random(7)  # noqa: S311 - the same moments again is what is wanted
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url)
    for _ in range(3):
        daemon.says_more("event=ingested")
        time.sleep(rng.uniform(0, 0.2))
        server.kill()
        daemon.says_more("event=failed")
        server.start()
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, url)
    assert "Traceback" not in daemon.log.read_text()


@pytest.mark.long
def test_a_server_away_for_long(processes: ForkServer, spool: Path, server: PostgresServer, url: str) -> None:
    """Stopped in order: the daemon is not ready, waits ever longer, keeps the spool, and is ready again by itself."""
    port = free_port()
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url, "--listen", f"127.0.0.1:{port}", "--backoff-most", 2)
    daemon.says_more("event=ingested")
    assert readiness(port) == (200, "ready\n")
    server.stop()
    eventually(lambda: daemon.says("event=failed") >= 4)
    status, problem = readiness(port)
    assert (status, len(problem.splitlines())) == (503, 1)
    assert Spool(spool).status().segments > 0
    server.start()
    daemon.says_more("event=ingested")
    assert readiness(port) == (200, "ready\n")
    lines = [line for line in daemon.log.read_text().splitlines() if "event=failed" in line]
    waits = [float(line.rpartition("retry_s=")[2].split()[0]) for line in lines]
    assert waits[0] <= 0.1
    assert waits == sorted(waits)
    finish(processes, daemon, writer, spool, url)


@pytest.mark.long
def test_a_daemon_that_starts_before_its_server(
    processes: ForkServer, spool: Path, server: PostgresServer, url: str
) -> None:
    """A machine that comes up before the server has a daemon that waits for it."""
    server.stop()
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url)
    daemon.says_more("event=failed")
    server.start()
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, url)


@long
def test_a_commit_of_which_the_answer_is_lost(
    processes: ForkServer, spool: Path, server: PostgresServer, url: str
) -> None:
    """The server dies after it has committed and before it says so: what is there already is not added again."""
    # Commits that bring measurements wait for a second server, as soon as there should be one; they are on this one's
    # disk by then. Others, those of new dimension rows, do not wait.
    name = str(sa.make_url(url).database)
    server.sql(f"ALTER DATABASE {name} SET synchronous_commit = local")
    server.sql(
        "CREATE FUNCTION wait_for_copy() RETURNS trigger LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM set_config('synchronous_commit', 'on', true); RETURN NULL; END $$;"
        "CREATE TRIGGER wait_for_copy AFTER INSERT ON measurements FOR EACH STATEMENT EXECUTE FUNCTION wait_for_copy()",
        name,
    )
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url)
    daemon.says_more("event=ingested")
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
    server.sql("SELECT pg_reload_conf()")
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    eventually(lambda: server.sql(waiting) == [(1,)])
    server.kill()
    daemon.says_more("event=failed")
    (server.folder / "data" / "postgresql.auto.conf").write_text("")
    server.start()
    daemon.says_more("event=ingested")
    assert re.search(r"event=ingested .* duplicates=[1-9]", daemon.log.read_text())
    finish(processes, daemon, writer, spool, url)


@long
def test_a_commit_that_fails(processes: ForkServer, spool: Path, server: PostgresServer, url: str) -> None:
    """The transaction is refused at its very end, again and again: nothing of it stays, and it is all tried again."""
    name = str(sa.make_url(url).database)
    at_each_commit(server, name, "RAISE 'no room'")
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url)
    eventually(lambda: daemon.says("event=failed") >= 3)
    assert stored(server, name) == 0
    server.sql("DROP TRIGGER at_commit ON measurements", name)
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, url)


@long
def test_a_server_killed_inside_a_commit(processes: ForkServer, spool: Path, server: PostgresServer, url: str) -> None:
    """The server dies while the transaction's last checks run, before it is committed: it is all tried again."""
    name = str(sa.make_url(url).database)
    at_each_commit(server, name, "PERFORM pg_sleep(60)")
    writer = processes.writer(spool, 1, pause_s=0.05)
    daemon = processes.daemon(spool, url)
    eventually(lambda: server.sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == [(1,)])
    server.kill()
    daemon.says_more("event=failed")
    server.start()
    assert stored(server, name) == 0
    server.sql("ALTER TABLE measurements DISABLE TRIGGER at_commit", name)
    daemon.says_more("event=ingested")
    finish(processes, daemon, writer, spool, url)
