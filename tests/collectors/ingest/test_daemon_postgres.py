from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_process import ANY_PORT, Daemon
from daemon_samples import fill
from run_ingest import ingest
from sqlalchemy.engine import make_url

from diode_store.warehouse.store import Store
from waiting import eventually

if TYPE_CHECKING:
    import postgres_server

SECRET = "correct horse"  # noqa: S105 - as the test server has it


@pytest.fixture
def config(spool: Path, tmp_path: Path, postgres_server: postgres_server.PostgresServer, postgres_url: str) -> Path:
    """Return a settings file that names a warehouse on PostgreSQL, with its password."""
    url = postgres_server.tcp_url(make_url(postgres_url).database or "")
    path = tmp_path / "d.toml"
    path.write_text(f'spool = "{spool}"\ndatabase = "{url}"\n')
    path.chmod(0o600)
    return path


def shown_by(daemon: Daemon) -> str:
    """Return everything that others can see of a daemon."""
    command = Path(f"/proc/{daemon.process.pid}/cmdline").read_text(encoding="utf-8")
    return "\n".join([*daemon.log, command, *(daemon.get(path)[1] for path in ("/healthz", "/readyz", "/metrics"))])


def test_a_warehouse_on_postgresql(config: Path, spool: Path, postgres_url: str) -> None:
    """The password comes from a private file, and shows nowhere; memory stays small."""
    fill(spool, range(120))
    with Daemon(None, None, "--config", config, *ANY_PORT) as daemon:
        with Store.open(postgres_url) as store:
            eventually(lambda: store.counts()["measurements"] == 120)
        eventually(lambda: daemon.get("/readyz") == (200, "ready\n"))
        shown = shown_by(daemon)
        assert daemon.metrics()["process_resident_memory_bytes"] < 120 * 2**20
        assert daemon.end(signal.SIGTERM) == 0
    assert SECRET not in shown + "".join(daemon.log)
    assert "correct" not in shown + "".join(daemon.log)


def test_a_wrong_password_shows_nowhere(config: Path, spool: Path) -> None:
    """Nor does one that the server refuses; the daemon waits for somebody to mend it."""
    text = config.read_text()
    wrong = text.replace("correct%20horse", "battery").replace("correct+horse", "battery")
    assert wrong != text
    config.write_text(wrong)
    fill(spool, range(2))
    with Daemon(None, None, "--config", config, *ANY_PORT) as daemon:
        daemon.wait_for("event=failed")
        eventually(lambda: daemon.get("/readyz")[0] == 503)
        assert "password authentication failed" in daemon.get("/readyz")[1]
        assert "battery" not in shown_by(daemon)
        config.write_text(text)
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: daemon.get("/readyz")[0] == 200)
        eventually(lambda: list(spool.glob("*.seg")) == [])
        assert daemon.end(signal.SIGTERM) == 0
    assert "battery" not in "".join(daemon.log)


def test_what_waiting_does_not_mend_is_told_at_once(spool: Path) -> None:
    """A kind of database that is not supported ends the daemon with one line."""
    ended = ingest("run", "--spool", spool, "--database", "mysql://me@db/w")
    assert ended.code == 1
    assert ended.err.endswith("error: mysql://me@db/w: mysql is not supported; use SQLite or PostgreSQL\n")
    assert ended.err.count("\n") == 1
