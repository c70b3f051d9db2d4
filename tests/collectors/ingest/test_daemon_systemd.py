from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_process import Daemon
from daemon_samples import PROGRAM, fill, stored_in
from run_ingest import ingest

from diode_collectors.ingest.monitoring.notify import Notifier, NotifyObserver
from diode_collectors.ingest.settings import SETTINGS, DaemonSettings, load, read
from diode_collectors.ingest.unit import User, default_settings, unit_text, write_defaults
from diode_store.errors import DatabaseError, SettingsError
from diode_store.system.urls import sqlite_path
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunCommand


class Systemd:
    """The end of the notification socket that systemd has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0", 1))
        self._socket.settimeout(0)

    def lines(self) -> list[str]:
        """Return every line heard so far."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    """Return a notification socket."""
    listening = Systemd(str(tmp_path / "notify"))
    yield listening
    listening.close()


def test_a_daemon_tells_systemd_everything(directory: Path, database_path: Path, systemd: Systemd) -> None:
    """Ready once the warehouse is open, alive while it waits, reloading, and stopping."""
    env = {"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "400000"}
    with Daemon(directory, database_path, env=env) as daemon:
        eventually(lambda: "READY=1" in systemd.lines())
        begin = time.monotonic()
        already = systemd.lines().count("WATCHDOG=1")
        eventually(lambda: systemd.lines().count("WATCHDOG=1") >= already + 5)
        assert time.monotonic() - begin > 0.5
        fill(directory, range(3))
        eventually(lambda: "STATUS=waiting for records; 3 measurements stored since the start" in systemd.lines())
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: systemd.lines().count("READY=1") == 2)
        (stamp,) = [line for line in systemd.lines() if line.startswith("MONOTONIC_USEC=")]
        assert abs(int(stamp.partition("=")[2]) / 1e6 - time.clock_gettime(time.CLOCK_MONOTONIC)) < 30
        assert systemd.lines().index("RELOADING=1") < len(systemd.lines()) - systemd.lines()[::-1].index("READY=1")
        assert daemon.end(signal.SIGTERM) == 0
    assert "STOPPING=1" in systemd.lines()


def test_a_loop_that_hangs_feeds_no_watchdog(directory: Path, database_path: Path, systemd: Systemd) -> None:
    """In a locked database the signs of life end, so that systemd would act; they come back with the database."""
    with Daemon(directory, database_path, env={"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "100000"}):
        eventually(lambda: "WATCHDOG=1" in systemd.lines())
        rival = sqlite3.connect(database_path)
        rival.execute("BEGIN IMMEDIATE")
        fill(directory, range(3))
        time.sleep(1)
        before = systemd.lines().count("WATCHDOG=1")
        time.sleep(0.5)
        assert systemd.lines().count("WATCHDOG=1") == before
        rival.rollback()
        rival.close()
        eventually(lambda: systemd.lines().count("WATCHDOG=1") > before + 2)
        eventually(lambda: stored_in(database_path) == [0, 1, 2])


def test_a_daemon_without_its_database_has_started(directory: Path, systemd: Systemd) -> None:
    """Or systemd would end it as one that never came up; the status says what is wrong."""
    place = "postgresql://diode@127.0.0.1:1/nobody-listens"
    with Daemon(directory, place, env={"NOTIFY_SOCKET": systemd.name}):
        eventually(lambda: "READY=1" in systemd.lines())
        (status,) = [line for line in systemd.lines() if line.startswith("STATUS=")][:1]
        assert "127.0.0.1:1/nobody-listens: connection to server" in status
        assert "; retried in " in status


def test_an_abstract_socket() -> None:
    """A name that begins with @ is not a file, and no field can add a line of its own."""
    listening = Systemd(f"@diode-test-{os.getpid()}-{time.monotonic_ns()}")
    Notifier({"NOTIFY_SOCKET": listening.name}).send(READY=1, STATUS="two\nlines")
    assert listening.lines() == ["READY=1", "STATUS=two lines"]
    listening.close()


@pytest.mark.parametrize("name", ["", "/nowhere/at/all", "vsock:2:1", "relative"])
def test_nobody_listens(name: str) -> None:
    """Without a systemd that listens nothing happens."""
    Notifier({"NOTIFY_SOCKET": name}).send(READY=1)


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "2500000"}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": str(os.getpid())}, 2.5),
        ({"WATCHDOG_USEC": "2500000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdogs_time(environment: dict[str, str], seconds: float | None) -> None:
    """It counts for this process alone, and only if it is a time."""
    assert Notifier(environment).watchdog_s == seconds


def test_the_watchdog_hears_at_half_its_time(tmp_path: Path, systemd: Systemd) -> None:
    """Not at every turn of the loop, and on a clock that setting the time of day does not move."""
    clock = [50.0]
    observer = NotifyObserver(Notifier({"NOTIFY_SOCKET": systemd.name, "WATCHDOG_USEC": "10000000"}), lambda: clock[0])
    for clock[0] in (50.0, 51.0, 54.9, 55.0, 59.0, 60.0):
        observer.beat()
    assert systemd.lines() == ["WATCHDOG=1"] * 3
    observer.failed(tmp_path, DatabaseError("away"), 2)
    observer.failed(tmp_path, DatabaseError("away"), 2)
    assert systemd.lines()[3:] == ["READY=1", "STATUS=away; retried in 2 s"]


# The unit


def unit_fields(text: str) -> dict[str, str]:
    """Return what a unit sets, the last of each name."""
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def test_the_unit_has_the_operators_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts this diode-ingest with that file, and may write the spools and the warehouse's folder alone."""
    monkeypatch.delenv("DIODE_LISTEN")
    config = tmp_path / "d.toml"
    config.write_text(f'spool = ["{tmp_path}/a", "{tmp_path}/b"]\ndatabase = "{tmp_path}/db/w.db"\n')
    ended = ingest("unit", "--config", config, "--user", "timings")
    missing = f"`diode db upgrade --database {tmp_path}/db/w.db`"
    lines = [f"{tmp_path}/{name} does not exist; create it for timings before the daemon starts" for name in "ab"]
    lines += [f"{tmp_path}/db does not exist; create it for timings before the daemon starts"]
    lines += [f"before the daemon starts, run {missing} as timings", ""]
    assert (ended.code, ended.err) == (0, "\n".join(lines))
    fields = unit_fields(ended.out)
    assert fields["ExecStart"] == f"{PROGRAM} run --config {config}"
    assert fields["User"] == "timings"
    assert fields["ReadWritePaths"] == f"{tmp_path}/a {tmp_path}/b {tmp_path}/db"
    wanted = {
        "Type": "notify",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "UMask": "0077",
        "Restart": "on-failure",
        "WatchdogSec": "300",
        "ExecReload": "/bin/kill -HUP $MAINPID",
    }
    assert {name: fields[name] for name in wanted} == wanted


def test_a_warehouse_elsewhere_needs_no_folder(tmp_path: Path) -> None:
    """With PostgreSQL the daemon writes nothing but its spools."""
    config = tmp_path / "d.toml"
    config.write_text(f'spool = "{tmp_path}/a"\ndatabase = "postgresql://me@db/w"\n')
    assert unit_fields(ingest("unit", "--config", config).out)["ReadWritePaths"] == f"{tmp_path}/a"


def test_a_unit_without_a_settings_file_brings_one_that_starts(tmp_path: Path, diode: RunCommand) -> None:
    """The user's own, with the defaults, which `diode db upgrade` and the daemon then both use."""
    file = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    data = tmp_path / "data-home" / "torch-diode"
    shown = ingest("unit", "--dry-run")
    assert shown.err.startswith(f"would write {file}:\n# Settings of diode-ingest")
    assert not file.exists()
    ended = ingest("unit")
    assert ended == (0, shown.out, f"wrote {file}\nbefore the daemon starts, run `diode db upgrade` as {_me()}\n")
    fields = unit_fields(ended.out)
    assert (fields["User"], fields["ExecStart"]) == (_me(), f"{PROGRAM} run --config {file}")
    assert (stat.S_IMODE(file.stat().st_mode), fields["ReadWritePaths"]) == (0o600, f"{data}/spool {data}")
    assert diode("db", "upgrade").code == 0
    assert all(Path(folder).is_dir() for folder in fields["ReadWritePaths"].split())
    with Daemon(None, None, *fields["ExecStart"].split()[2:]) as daemon:
        daemon.wait_for("event=connected")
        fill(data / "spool", range(2))
        eventually(lambda: stored_in(data / "warehouse.db") == [0, 1])
        assert daemon.end(signal.SIGTERM) == 0
    again = ingest("unit")
    assert again == (0, ended.out, "")


def test_the_defaults_of_a_user_are_those_of_the_commands() -> None:
    """The unit's file names the warehouse and the spool that hold without a file."""
    mine, usual = default_settings(User.named(None)), DaemonSettings()
    assert (sqlite_path(mine.database), mine.spool) == (sqlite_path(usual.database), usual.spool)


def test_every_default_in_the_written_file_is_one(tmp_path: Path) -> None:
    """What stands in comments sets, without the marks, what holds without the file; a group has no default."""
    file = tmp_path / "new" / "d.toml"
    assert ingest("unit", "--config", file).code == 0
    assert load({}, file) == DaemonSettings(str(tmp_path / "data-home/torch-diode/warehouse.db"))
    text = re.sub(r"^# (\w+ = )", r"\1", file.read_text(), flags=re.MULTILINE)
    file.write_text(text)
    assert read(file).keys() == SETTINGS.keys()
    assert replace(load({}, file), group=None) == replace(load({}, None), database=load({}, file).database)


def test_a_unit_for_another_user(tmp_path: Path) -> None:
    """The file is in that user's folders and is that user's; one who does not exist is refused."""
    if os.geteuid() != 0:
        pytest.skip("only root may make files for others")
    ended = ingest("unit", "--dry-run", "--user", "nobody")
    home = Path(pwd.getpwnam("nobody").pw_dir)
    assert f"would write {home}/.config/torch-diode/diode-ingest.toml:" in ended.err
    file = tmp_path / "d.toml"
    write_defaults(file, DaemonSettings(spool=(tmp_path / "a" / "spool",)), User.named("nobody"))
    made = (file, tmp_path / "a", tmp_path / "a" / "spool")
    assert {path.stat().st_uid for path in made} == {pwd.getpwnam("nobody").pw_uid}
    with tempfile.TemporaryDirectory() as closed:  # tmp_path may be closed to others, too
        inside = Path(closed) / "d.toml"
        inside.write_text('spool = "/tmp"\ndatabase = "postgresql://db/w"\n')
        assert ingest("unit", "--user", "nobody", "--config", inside).err == (
            f"nobody cannot read {inside}; change its owner or mode, or those of its folders\n"
        )
        Path(closed).chmod(0o711)
        assert ingest("unit", "--user", "nobody", "--config", inside).err == ""
        inside.chmod(0o640)
        assert "nobody cannot read" in ingest("unit", "--user", "nobody", "--config", inside).err
        os.chown(inside, pwd.getpwnam("nobody").pw_uid, -1)
        assert ingest("unit", "--user", "nobody", "--config", inside).err == ""
    refused = ingest("unit", "--user", "no-such-user")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith("error: there is no user 'no-such-user'; create it with `useradd ")


def test_a_settings_file_that_cannot_be_written(tmp_path: Path) -> None:
    """It is one line, and no unit that would not start is printed."""
    (tmp_path / "file").touch()
    ended = ingest("unit", "--config", tmp_path / "file" / "d.toml")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {tmp_path}/file/d.toml: cannot be made: Not a directory; run this as root")


def _me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` says nothing about it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    config = tmp_path / "d.toml"
    config.write_text(f'spool = "{tmp_path}/a"\n')
    path = tmp_path / "diode-ingest.service"
    path.write_text(ingest("unit", "--config", config, "--user", "root").out)
    finished = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.returncode, [line for line in finished.stderr.splitlines() if "diode" in line]) == (0, [])


@pytest.mark.parametrize(
    ("config", "user", "message"),
    [
        ("/with blank/d.toml", "me", "a unit file cannot hold this path"),
        ("/per%cent/d.toml", "me", "a unit file cannot hold this path"),
        ("/d.toml", "me\nExecStart=/bin/sh", "is not a user name"),
    ],
)
def test_what_would_mean_something_else_in_a_unit(config: str, user: str, message: str) -> None:
    """A path or name that systemd would read differently is refused."""
    with pytest.raises(SettingsError, match=message):
        unit_text(PROGRAM, Path(config), user, [])
