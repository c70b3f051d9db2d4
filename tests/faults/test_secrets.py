from __future__ import annotations

import base64
import contextlib
import signal
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from compare import assert_exactly_once
from processes import ForkServer, drained, free_port, readiness
from producing import produced

import postgres_server
from diode_store.warehouse import database, migrate
from lanes import long
from postgres_server import PostgresServer
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunCommand

SECRET = "Zq8-hunter two%/:#"  # noqa: S105 - of a server that lives for one test
COMMANDS = (
    ("db", "current"),
    ("db", "check"),
    ("db", "stats", "--json"),
    ("db", "upgrade"),
    ("sync",),
    ("query", "SELECT count(*) FROM observations"),
    ("query", "SELECT nonsense"),
    ("hardware", "list"),
)
FORMS = {SECRET, quote(SECRET, safe=""), quote(SECRET), base64.b64encode(SECRET.encode()).decode(), "hunter"}
"""The password as it is, in URLs, in an encoding that hides nothing, and a part of it."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """Return a server that asks for a password."""
    if reason := postgres_server.missing():
        pytest.skip(reason)
    with PostgresServer.in_temp_folder() as server:
        server.sql(f"ALTER ROLE {postgres_server.ROLE} PASSWORD '{SECRET}'")
        yield server


@pytest.fixture
def url(guarded: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the address of an empty warehouse, with its password."""
    local = guarded.create_database("secrets")
    engine = database.make_engine(local)
    migrate.upgrade(engine)
    engine.dispose()
    yield sa.make_url(guarded.tcp_url("secrets")).set(password=SECRET).render_as_string(hide_password=False)
    guarded.drop_database("secrets")


def shown_in(text: str) -> list[str]:
    """Return the forms of the password that a text holds."""
    return [form for form in sorted(FORMS) if form in text]


def command_line(pid: int) -> str:
    """Return what `ps` shows of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text()


@long
def test_a_daemon_shows_no_password(guarded: PostgresServer, url: str, spool: Path, tmp_path: Path) -> None:
    """Log at its most talkative, health, readiness, metrics, `ps`, also while the server is away: it is not seen."""
    port = free_port()
    settings = {"DIODE_DATABASE_URL": url, "DIODE_LISTEN": f"127.0.0.1:{port}", "DIODE_LOG_LEVEL": "DEBUG"}
    with ForkServer(tmp_path / "processes", {**settings, "DIODE_BACKOFF_MOST_S": "0.5"}) as processes:
        writer = processes.writer(spool, 1, pause_s=0.05)
        daemon = processes.ingest("run", "--spool", spool, "--min-free-bytes", 0)
        daemon.says_more("event=ingested")
        answers = [readiness(port)[1]]
        guarded.kill()
        daemon.says_more("event=failed")
        status, problem = readiness(port)
        assert (status, "127.0.0.1" in problem) == (503, True)
        answers.append(problem)
        for page in ("metrics", "healthz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
                answers.append(answer.read().decode())
        answers.append(command_line(daemon.pid))
        guarded.start()
        guarded.sql(f"ALTER ROLE {postgres_server.ROLE} PASSWORD 'another'")
        guarded.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'secrets'")
        eventually(lambda: daemon.says("password authentication failed") or daemon.says("refuses"))
        answers.append(readiness(port)[1])
        guarded.sql(f"ALTER ROLE {postgres_server.ROLE} PASSWORD '{SECRET}'")
        daemon.says_more("event=ingested")
        assert writer.end(signal.SIGKILL) == -signal.SIGKILL
        eventually(lambda: drained(spool))
        assert daemon.end(signal.SIGTERM) == 0
        acknowledged = processes.acknowledged()
    assert len(answers) == 6
    assert [shown_in(text) for text in (*answers, daemon.log.read_text())] == [[]] * 7
    assert assert_exactly_once(url, acknowledged, produced, others=True) > 0


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize("form", ["userinfo", "parameter"])
def test_no_command_and_no_cache_shows_a_password(
    url: str, tmp_path: Path, diode: RunCommand, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """Whatever a command prints, to whichever stream, and every file of the cache: it is not in there."""
    if form == "parameter":
        url = sa.make_url(url).set(password=None).update_query_dict({"password": SECRET}).render_as_string()
    cache = tmp_path / "cache"
    monkeypatch.setenv("DIODE_CACHE", str(cache))
    absent = url.replace("/secrets", "/absent")
    said = []
    for address in (url, absent, absent.replace("127.0.0.1", "127.0.0.2")):
        monkeypatch.setenv("DIODE_DATABASE_URL", address)
        for command in COMMANDS:
            ended = diode(*command)
            said.append(f"{command}: {ended.out} {ended.err}")
            assert ended.code == int(address != url or "nonsense" in command[-1]), said[-1]
    with ForkServer(tmp_path / "processes") as processes:
        commands = [("--once", "--spool", tmp_path / "spool"), ("status", "--json"), ("run",)]
        children = [processes.ingest(*command) for command in commands]
        assert [child.end() for child in children[:2]] == [1, 0]
        children[2].says_more("event=failed")
        assert children[2].end(signal.SIGTERM) == 0
        said += [child.log.read_text() for child in children]
    files = [path for path in cache.rglob("*") if path.is_file()]
    said += [path.read_bytes().decode(errors="replace") for path in files]
    assert any(path.name.endswith(".json") for path in files)
    assert [text for text in said if shown_in(text)] == []


@pytest.mark.long
def test_a_password_in_a_settings_file_that_others_may_read(url: str, spool: Path, tmp_path: Path) -> None:
    """It is refused before anybody listens, in one line that does not repeat it; for its owner alone it is taken."""
    config = tmp_path / "diode-ingest.toml"
    config.write_text(f'database = "{url}"\nmin_free_bytes = 0\n')
    config.chmod(0o644)
    with ForkServer(tmp_path / "processes", {"DIODE_CONFIG": str(config)}) as processes:
        refused = processes.ingest("run", "--spool", spool)
        assert refused.end() == 1
        (line,) = refused.log.read_text().splitlines()
        assert "chmod 600" in line
        config.chmod(0o600)
        daemon = processes.ingest("run", "--spool", spool)
        daemon.says_more("event=connected")
        assert not shown_in(command_line(daemon.pid))
        assert daemon.end(signal.SIGTERM) == 0
        assert [shown_in(child.log.read_text()) for child in (refused, daemon)] == [[], []]


def listening(pid: int) -> set[str]:
    """Return the addresses, as hexadecimal digits, that a process listens on."""
    sockets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(fd.readlink()))
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def test_nobody_else_is_listened_to_unless_told(
    spool: Path, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it comes, a daemon's health is for its own machine alone; it listens to others only where one says so."""
    monkeypatch.delenv("DIODE_LISTEN")
    with ForkServer(tmp_path / "processes") as processes:
        daemon = processes.daemon(spool, database_url)
        eventually(lambda: daemon.says("event=started") or daemon.says("cannot listen"))
        if daemon.says("cannot listen"):
            pytest.skip("somebody else has the port that is listened on by default")
        eventually(lambda: listening(daemon.pid))
        assert listening(daemon.pid) == {"0100007F"}
        assert daemon.end(signal.SIGTERM) == 0
        daemon = processes.daemon(spool, database_url, "--listen", "off")
        daemon.says_more("event=connected")
        assert listening(daemon.pid) == set()
        assert daemon.end(signal.SIGTERM) == 0
        daemon = processes.daemon(spool, database_url, "--listen", f"0.0.0.0:{free_port()}")
        eventually(lambda: listening(daemon.pid) == {"00000000"})
        assert daemon.end(signal.SIGTERM) == 0
