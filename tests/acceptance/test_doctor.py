"""`diode doctor`: what it says of a sound installation, and of each thing that can be wrong with one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import closing
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_collectors.inductor.device_checks import driver_finding, torch_finding
from diode_collectors.inductor.driver import Driver
from diode_collectors.ingest import spool_checks
from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import Metrics
from diode_collectors.ingest.monitoring.serving import StatusServer
from diode_collectors.spool.spool import Spool
from diode_collectors.spool.writer import SpoolWriter
from diode_store.cache import sqlite
from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import sync
from diode_store.command_line import diagnosis
from diode_store.command_line.diagnosis import Finding, Level, Setup
from diode_store.commands import warehouse_checks
from diode_store.errors import SpoolError
from diode_store.system.settings import default_database_url
from diode_store.system.urls import Address
from diode_store.warehouse import schema
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunCommand
    from samples import MakeMeasurement

H200 = "NVIDIA H200"


def brief(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    """Return what was looked at, and how good it is."""
    return [(finding.subject, str(finding.level)) for finding in findings]


def contents(folder: Path) -> dict[Path, bytes]:
    """Return every file but the index that SQLite makes for its readers."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal")))
    return {path: path.read_bytes() for path in files}


def entry(function: str, name: str = "mine") -> EntryPoint:
    """Return a check in this file as another distribution would name it."""
    return EntryPoint(name, f"{__name__}:{function}", diagnosis.GROUP)


def test_sound_installation(diode: RunCommand, database_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at everything, quick things first, finds no problem, exits with 0, and changes no file."""
    before = contents(database_path.parent)
    monkeypatch.setenv("DIODE_DATABASE_URL", str(database_path))
    code, out, err = diode("doctor", "--json", "--timeout", "300")
    found = json.loads(out)
    assert (code, err, found["problems"]) == (0, "", 0)
    subjects = [finding["subject"] for finding in found["findings"]]
    wanted = ["Python", "torch-diode", "torch", "duckdb", "GPU", "warehouse", "cache", "spool", "daemon"]
    assert [subject for subject in subjects if subject in wanted] == wanted
    last = ["torch GPU", "Triton", *["model"] * 5, "hook", "seams", "seams"]
    assert [subject for subject in subjects if subject in last] == subjects[-len(last) :] == last
    assert contents(database_path.parent) == before


def test_every_check_of_ours_has_its_place() -> None:
    """The order names each check of this distribution, so that none comes behind those of others."""
    assert [check.name for check in diagnosis.checks()] == list(diagnosis._ORDER)


def test_quick_checks_load_no_torch(database_path: Path) -> None:
    """What stands before torch is printed before torch is imported."""
    code = (
        "import sys\n"
        "from diode_store.command_line.diagnosis import Setup, checks, findings\n"
        "for check in checks():\n"
        "    if check.name == 'torch': break\n"
        "    print(check.name, len(list(findings(check, Setup(sys.argv[1]), 300))) > 0)\n"
        "print('torch' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(database_path)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = ["versions True", "gpu True", "warehouse True", "spool True", "False"]
    assert finished.stdout.splitlines() == expected


def test_problems_are_told_with_their_remedies(
    diode: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person sees a line and a remedy below it; a problem makes the exit status 1."""
    monkeypatch.setattr(diagnosis, "checks", lambda: [entry("warns"), entry("fails", "spool")])
    code, out, err = diode("doctor", "--database", str(tmp_path / "none.db"))
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "warning  cache        behind",
        "                      -> run `diode sync`",
        "problem  spool        the disk is full",
        "                      -> make room",
        "",
        "1 problem, 1 warning",
    ]


@pytest.mark.parametrize(
    ("content", "said", "remedy"),
    [
        ("a = = b", "this is not TOML: ", "correct it in the settings file or the environment"),
        ("database = 3", "database must be a URL, ", "correct it in the settings file or the environment"),
        (None, "cannot be read: No such file or directory", "name another settings file"),
    ],
)
def test_bad_settings_file(
    diode: RunCommand,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | None,
    said: str,
    remedy: str,
) -> None:
    """It is told once, as a problem of the settings, and the checks that do without it still run."""
    names = ("versions", "warehouse", "spool")
    quick = [check for check in diagnosis.checks() if check.name in names]
    monkeypatch.setattr(diagnosis, "checks", lambda: quick)
    config = tmp_path / "bad.toml"
    if content is not None:
        config.write_text(content)
    monkeypatch.setenv("DIODE_CONFIG", str(config))
    code, out, err = diode("doctor", "--json")
    found = json.loads(out)
    assert (code, err, found["problems"]) == (1, "", 1)
    first, *others = found["findings"]
    assert (first["subject"], first["level"], first["remedy"]) == ("settings", "problem", remedy)
    assert first["text"].startswith(f"{config}: {said}")
    assert [each["subject"] for each in others][-2:] == ["spool", "daemon"]


def warns(_setup: Setup) -> Iterator[Finding]:
    """A check that warns."""
    yield diagnosis.warning("cache", "behind", "run `diode sync`")


def fails(_setup: Setup) -> Iterator[Finding]:
    """A check that raises one of our errors."""
    raise SpoolError("the disk is full; make room")


def breaks(_setup: Setup) -> Iterator[Finding]:
    """A check with a fault."""
    yield diagnosis.ok("mine", "so far")
    raise ZeroDivisionError


def hangs(_setup: Setup) -> Iterator[Finding]:
    """A check that waits for longer than anybody would."""
    yield diagnosis.ok("mine", "so far")
    time.sleep(600)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("breaks", "the check failed: ZeroDivisionError: ZeroDivisionError"),
        ("hangs", "no answer within 0.2 s"),
    ],
)
def test_check_that_does_not_do(function: str, said: str) -> None:
    """A check that raises or hangs is a problem itself; what it found before is kept."""
    first, second = diagnosis.findings(entry(function), Setup(""), 0.2)
    assert (first, second.level, second.text) == (diagnosis.ok("mine", "so far"), Level.PROBLEM, said)


def test_check_that_cannot_be_loaded() -> None:
    """A check of a broken distribution is a problem, and no traceback."""
    (found,) = diagnosis.findings(EntryPoint("mine", "no_such_module:check", diagnosis.GROUP), Setup(""), 60)
    assert (found.level, found.remedy) == (Level.PROBLEM, "reinstall no_such_module; if that does not help, report it")


def test_warehouse_and_cache(any_url: str, make_measurement: MakeMeasurement) -> None:
    """On both databases it counts what is there, and tells a fresh cache from one that is behind."""
    with Store.open(any_url) as store:
        store.write([make_measurement(1)])
        cache = Cache(cache_path(any_url))
        sync(any_url, cache)
        warehouse, fresh = warehouse_checks.check_warehouse(Setup(any_url))
        store.write([make_measurement(2)])
    counted, behind = warehouse_checks.check_warehouse(Setup(any_url))
    assert "1 measurements" in warehouse.text
    assert "2 measurements" in counted.text
    assert fresh.text.endswith("up to date")
    assert "behind since" in behind.text
    assert {finding.level for finding in (warehouse, fresh, counted, behind)} == {Level.OK}


def test_damaged_cache(database_url: str, make_measurement: MakeMeasurement) -> None:
    """A cache that lost a file is a warning: the next query repairs it."""
    with Store.open(database_url) as store:
        store.write([make_measurement(1)])
    cache = Cache(cache_path(database_url))
    sync(database_url, cache)
    next(cache.path.glob("recent-*.duckdb")).unlink()
    _, found = warehouse_checks.check_warehouse(Setup(database_url))
    assert (found.subject, found.level) == ("cache", Level.WARNING)
    assert "is missing" in found.text


def test_cache_that_cannot_be_made(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No query could make it, as it is below a file or where the kernel lets nobody write."""
    (tmp_path / "file").touch()
    for place, reason in ("/proc/no/cache", "/proc is not writable"), (f"{tmp_path}/file", f"{tmp_path}/file is not a"):
        monkeypatch.setenv("DIODE_CACHE", place)
        _, found = warehouse_checks.check_warehouse(Setup(database_url))
        assert (found.level, found.remedy) == (Level.PROBLEM, "set DIODE_CACHE to a folder of your own")
        assert found.text.startswith(f"{place}: cannot be made: {reason}")


def test_no_warehouse_yet(tmp_path: Path) -> None:
    """Who only wants the hook has no warehouse, which is a warning with the command that makes one."""
    (found,) = warehouse_checks.check_warehouse(Setup(str(tmp_path / "none.db")))
    assert found.level is Level.WARNING
    assert found.remedy == f"create it with `diode db upgrade --database {tmp_path / 'none.db'}`"


def test_old_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warehouse of an older revision is a problem, and the remedy is the upgrade."""
    old = shutil.copy(Path(__file__).parents[1] / "data" / "warehouse-0001.db", tmp_path)
    monkeypatch.setattr(schema, "HEAD_REVISION", "0099")
    monkeypatch.setattr(sqlite, "REVISION", "0099")
    (found,) = warehouse_checks.check_warehouse(Setup(str(old)))
    assert (found.level, found.subject) == (Level.PROBLEM, "warehouse")
    assert found.remedy == f"run `diode db upgrade --database {old}`"


def test_dead_server_does_not_hang() -> None:
    """A PostgreSQL that takes connections and never answers is left behind after the time limit."""
    check = EntryPoint("warehouse", "diode_store.commands.warehouse_checks:check_warehouse", diagnosis.GROUP)
    list(diagnosis.findings(check, Setup("/no/such.db"), 60))  # what it imports takes time of its own
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"postgresql://somebody@127.0.0.1:{silent.getsockname()[1]}/warehouse?connect_timeout=60"
        started = time.monotonic()
        (found,) = diagnosis.findings(check, Setup(url), 1)
        assert time.monotonic() - started < 30
    assert (found.level, found.text) == (Level.PROBLEM, "no answer within 1 s")


def test_server_that_is_away() -> None:
    """A PostgreSQL that refuses connections is one line, without the password."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    (found,) = warehouse_checks.check_warehouse(Setup(f"postgresql://somebody:secret@127.0.0.1:{port}/warehouse"))
    assert (found.level, found.remedy) == (
        Level.PROBLEM,
        "start the server, or check the URL's host and port",
    )
    assert "secret" not in f"{found.text} {found.remedy}"


def test_spool_without_a_daemon(
    tmp_path: Path, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that wait while nothing ingests are a warning that names the command; an empty spool is not."""
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
    setup = Setup(default_database_url())
    assert brief(spool_checks.check(setup)) == [("spool", "ok"), ("daemon", "ok")]
    with SpoolWriter(tmp_path / "spool") as writer:
        writer.append(make_measurement(1))
    spool, daemon = spool_checks.check(setup)
    assert (spool.level, daemon.level) == (Level.OK, Level.WARNING)
    assert "1 segment waiting" in spool.text
    assert daemon.remedy == "start `diode-ingest run`, or run `diode-ingest --once`"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_spool_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spool that this user may not write is a problem."""
    (tmp_path / "spool").mkdir(mode=0o500)
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
    assert brief(spool_checks.check(Setup("")))[0] == ("spool", "problem")


def test_spool_that_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spool that is no folder is a problem."""
    (tmp_path / "spool").touch()
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
    assert brief(spool_checks.check(Setup("")))[0] == ("spool", "problem")


def test_daemon_is_asked_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that holds the spool is asked whether it is ready, and may not answer at all."""
    health = Health(300)
    server = StatusServer(Address("127.0.0.1", 0), health, Metrics(health), None)
    said = []
    with Spool(tmp_path / "spool").lock(), closing(server):
        server.started([tmp_path / "spool"])
        monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
        monkeypatch.setenv("DIODE_LISTEN", str(server.address))
        said += [finding for finding in spool_checks.check(Setup("")) if "running" in finding.text]
        health.connected()
        said += [finding for finding in spool_checks.check(Setup("")) if "running" in finding.text]
        server.close()
        said += [finding for finding in spool_checks.check(Setup("")) if "running" in finding.text]
    assert [finding.level for finding in said] == [Level.PROBLEM, Level.OK, Level.WARNING]
    assert "the warehouse is not open yet" in said[0].text
    assert f"pid {os.getpid()}" in said[1].text


def test_daemon_that_writes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the daemon's settings name another warehouse than the commands ask, that is a warning."""
    monkeypatch.setenv("DIODE_DATABASE_URL", str(tmp_path / "one.db"))
    assert brief(spool_checks.check(Setup(f"sqlite:///{tmp_path / 'one.db'}"))) == [("spool", "ok"), ("daemon", "ok")]
    assert brief(spool_checks.check(Setup(str(tmp_path / "other.db"))))[-1] == ("daemon", "warning")


def test_collectors_that_write_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the daemon reads the spool of the settings file; a warning says where the records wait for nobody."""
    config = tmp_path / "d.toml"
    config.write_text(f'spool = "{tmp_path}/a"\n')
    monkeypatch.setenv("DIODE_CONFIG", str(config))
    found = list(spool_checks.check(Setup(None)))[-1]
    own = tmp_path / "data-home" / "torch-diode" / "spool"
    assert (found.level, found.text) == (Level.WARNING, f"collectors write to {own}, which diode-ingest does not empty")
    assert found.remedy == f"set DIODE_SPOOL, or spool in {config}"
    config.write_text(f'spool = ["{tmp_path}/a", "{own}/../spool"]\n')
    assert brief(spool_checks.check(Setup(None))) == [("spool", "ok"), ("daemon", "ok")] * 2
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "b"))
    assert brief(spool_checks.check(Setup(None))) == [("spool", "ok"), ("daemon", "ok")]


@pytest.mark.parametrize(
    ("driver", "amd", "on_bus", "level", "said"),
    [
        (Driver("580.1", (H200, H200)), False, 2, Level.OK, f"2 x {H200}, driver 580.1"),
        (Driver(), False, 0, Level.OK, "none; torch.compile uses the CPU"),
        (Driver(), False, 1, Level.WARNING, "1 NVIDIA GPU on the PCI bus, but no driver"),
        (Driver(error="Driver/library version mismatch"), False, 1, Level.PROBLEM, "the NVIDIA driver does not answer"),
    ],
)
def test_what_the_driver_says(driver: Driver, amd: bool, on_bus: int, level: Level, said: str) -> None:  # noqa: FBT001 - a parameter
    """No GPU is fine, one without a driver a warning, and a driver that does not answer a problem."""
    found = driver_finding(driver, amd=amd, on_bus=on_bus)
    assert found.level is level
    assert found.text.startswith(said)


@pytest.mark.parametrize(
    ("build", "by_driver", "by_torch", "visible", "level"),
    [
        ("2.13.0+cpu for cpu", [], [], None, Level.OK),
        ("2.13.0+cpu for cpu", [H200], [], None, Level.PROBLEM),
        ("2.13.0 for cuda 13.0", [H200], [H200], None, Level.OK),
        ("2.13.0 for cuda 13.0", [H200], [], None, Level.PROBLEM),
        ("2.13.0 for cuda 13.0", [H200, H200], [H200], "1", Level.WARNING),
        ("2.13.0 for rocm 7.0", [], ["AMD Instinct MI300X"], None, Level.OK),
    ],
)
def test_what_torch_sees(
    build: str,
    by_driver: list[str],
    by_torch: list[str],
    visible: str | None,
    level: Level,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A CPU build beside a GPU is a problem, and so is a GPU that a CUDA build does not see; hiding some is not."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch_finding(build, by_driver, by_torch).level is level
