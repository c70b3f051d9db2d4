from __future__ import annotations

import grp
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

import pytest
from daemon_samples import stored_in
from run_ingest import closed, ingest, ingest_without_power
from spool_samples import header_bytes, segment_bytes
from typer.main import get_command

from diode_collectors.ingest.commands.ingest import app
from diode_collectors.ingest.report import IngestReport, Rejection
from diode_collectors.spool.spool import Spool
from diode_store.system.resources import bundled_data_dir
from diode_store.wire.segments import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

READERS = [("--once",), ("--dry-run",), ("status",)]


def note(config: Path, database: object = None) -> str:
    """Return the line that says where settings are from."""
    return f"settings from {config}{f'; the database is {database}' if database else ''}\n"


@pytest.fixture
def config(tmp_path: Path, database_path: Path) -> Path:
    """Return a settings file that names a warehouse and two spools, which are not there yet."""
    path = tmp_path / "d.toml"
    path.write_text(f'database = "{database_path}"\nspool = ["{tmp_path}/a", "{tmp_path}/b"]\n')
    return path


@pytest.fixture
def spools(tmp_path: Path, config: Path) -> tuple[Path, Path]:
    """Return the two spools: three records wait in the first one, two in the other, one of them in both."""
    for name, numbers in (("a", [1, 2, 3]), ("b", [3, 4])):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.seg").write_bytes(segment_bytes(numbers))
    return tmp_path / "a", tmp_path / "b"


# Where the settings come from


def test_the_commands_that_read_the_file() -> None:
    """Those that ask for a spool; what is told its files does not."""
    group = get_command(app)
    commands = {"": group, **group.commands}  # type: ignore[attr-defined]
    named = {name: {parameter.name for parameter in command.params} for name, command in commands.items()}
    assert {name for name, names in named.items() if "config" in names} == {"", "run", "status", "unit"}
    assert {name for name, names in named.items() if "spool" in names} == {"", "run", "status"}


def test_the_spool_and_the_warehouse_of_the_file(spool: Path, database_path: Path, tmp_path: Path) -> None:
    """What `run` would empty is what `status` shows and `--once` ingests, into the same database."""
    config = tmp_path / "d.toml"
    config.write_text(f'database = "{database_path}"\nspool = "{spool}"\nlog_level = "ERROR"\n')
    (spool / "a.seg").write_bytes(segment_bytes([1, 2]))
    assert json.loads(ingest("status", "--json", "--config", config).out)["directory"] == str(spool)
    assert ingest("--dry-run", "--config", config).out.startswith("dry run: 2 new")
    said = "2 new, 0 already stored; 4 new timings, 1 segment done\n"
    assert ingest("--once", "--config", config) == (0, said, note(config, database_path))
    assert stored_in(database_path) == [1, 2]


def test_the_users_own_file_is_read(config: Path, tmp_path: Path) -> None:
    """Without being named; DIODE_CONFIG names another one, and an option goes before both."""
    own = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'spool = "{tmp_path}/own"\n')

    def directory(*arguments: object) -> str:
        return str(json.loads(ingest("status", "--json", *arguments).out)["directory"])

    assert directory() == f"{tmp_path}/own"
    config.write_text(f'spool = "{tmp_path}/named"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIODE_CONFIG", str(config))
        assert directory() == f"{tmp_path}/named"
        assert directory("--config", own) == f"{tmp_path}/own"
        patch.setenv("DIODE_SPOOL", f"{tmp_path}/environment")
        assert directory() == f"{tmp_path}/environment"
        assert directory("--spool", tmp_path / "option") == f"{tmp_path}/option"


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", READERS)
def test_a_config_folder_that_may_not_be_entered(
    command: tuple[str, ...], where: Sequence[object], tmp_path: Path
) -> None:
    """It is that of another user, whose HOME is still set: it counts as no file, unless the file is named."""
    own = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    own.parent.mkdir(parents=True)
    own.write_text("listen = 1\n")
    options = where[:2] if command == ("status",) else where
    with closed(own.parent):
        ended = ingest_without_power(*command, *options)
        named = ingest_without_power(*command, *options, "--config", own)
    assert (ended.code, ended.err) == (0, "")
    refused = f"error: {own}: cannot be read: Permission denied; name another settings file\n"
    assert named == (1, "", refused)


def test_the_file_that_is_read_is_named(config: Path, database_path: Path, tmp_path: Path) -> None:
    """With the database that it leads to, in JSON too; nothing is said where no file is read."""
    database = ("--database", f"{tmp_path}/other.db")
    refused = ingest("--once", "--config", config, *database)
    assert refused.err.startswith(note(config, f"{tmp_path}/other.db") + "error: ")
    report = ingest("--dry-run", "--json", "--config", config, "--spool", tmp_path / "a")
    assert (json.loads(report.out)["database"], report.err) == (str(database_path), note(config, database_path))
    assert ingest("status", "--json", "--config", config).err == note(config)
    assert ingest("status").err == ""
    assert ingest("--once", "--database", database_path).err == ""


def test_no_password_is_shown(tmp_path: Path) -> None:
    """Where the file's database is named."""
    config = tmp_path / "d.toml"
    config.write_text("database = 'postgresql://me:geheim@127.0.0.1:1/w'\n")
    config.chmod(0o600)
    ended = ingest("--dry-run", "--config", config)
    assert ended.err.startswith(note(config, "postgresql://me:***@127.0.0.1:1/w") + "error: ")
    assert "geheim" not in ended.err


def test_an_option_goes_before_the_database_of_the_file(spool: Path, database_path: Path, tmp_path: Path) -> None:
    """And so does the environment."""
    config = tmp_path / "d.toml"
    config.write_text(f'database = "{tmp_path}/absent.db"\nspool = "{spool}"\n')
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    refused = ingest("--dry-run", "--config", config)
    assert (refused.code, refused.out) == (1, "")
    assert f"diode db upgrade --database {tmp_path}/absent.db" in refused.err
    assert ingest("--dry-run", "--config", config, "--database", database_path).code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIODE_DATABASE_URL", f"sqlite:///{database_path}")
        assert ingest("--dry-run", "--config", config).code == 0


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    "text", ["listen = 1", "spol = 'x'", "not toml", "backoff_first_s = 60", "database = 'postgresql://me:geheim@db/w'"]
)
def test_a_bad_file_is_told_as_by_the_daemon(tmp_path: Path, command: tuple[str, ...], text: str) -> None:
    """In the same line and with the same exit status, also where the value would not be used."""
    config = tmp_path / "d.toml"
    config.write_text(text)
    ended = ingest(*command, "--config", config)
    assert ended == ingest("run", "--config", config)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "geheim" not in ended.err


@pytest.mark.parametrize("command", READERS)
def test_a_file_that_is_not_there(tmp_path: Path, command: tuple[str, ...]) -> None:
    """One that was named must exist."""
    ended = ingest(*command, "--config", tmp_path / "no.toml")
    assert ended == (
        1,
        "",
        f"error: {tmp_path}/no.toml: cannot be read: No such file or directory; name another settings file\n",
    )


@pytest.mark.parametrize("command", READERS)
def test_the_same_spool_twice_is_bad_usage(tmp_path: Path, command: tuple[str, ...]) -> None:
    """As for the daemon."""
    ended = ingest(*command, "--spool", tmp_path, "--spool", f"{tmp_path}/x/..")
    assert ended.code == 2
    assert "must be different folders" in " ".join(ended.err.split())


@pytest.mark.parametrize("command", ["run", "status", "validate", "unit"])
@pytest.mark.parametrize("option", ["--config", "--group"])
def test_an_option_does_not_go_before_a_command(command: str, option: str) -> None:
    """It would be taken for that of `--once`."""
    ended = ingest(option, "x", command)
    assert ended.code == 2
    assert f"{option} does not go before '{command}'; see `{command} --help`" in " ".join(ended.err.split())


def test_a_spool_that_is_made_is_the_groups(config: Path, tmp_path: Path, database_path: Path) -> None:
    """`--once` makes it as the daemon would; a dry run and `status` make nothing."""
    own = grp.getgrgid(os.getegid()).gr_name
    with config.open("a") as file:
        file.write(f'group = "{own}"\n')
    for command in (("--dry-run",), ("status",)):
        assert ingest(*command, "--config", config).code == 0
    assert not (tmp_path / "a").exists()
    assert ingest("--once", "--config", config).code == 0
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [0o2770] * 2
    ended = ingest("--once", "--config", config, "--group", "no-such-group", "--spool", tmp_path / "c")
    error = "error: --group: there is no group 'no-such-group'; create it with `groupadd no-such-group`\n"
    assert ended == (1, "", note(config, database_path) + error)


# Several spools


def test_each_spool_is_ingested(spools: tuple[Path, Path], config: Path, database_path: Path) -> None:
    """One after another, a line each and one for all; one record that is in both is stored once."""
    a, b = spools
    ended = ingest("--once", "--config", config)
    assert ended.out.splitlines() == [
        f"{a}: 3 new, 0 already stored; 6 new timings, 1 segment done",
        f"{b}: 1 new, 1 already stored; 2 new timings, 1 segment done",
        "in all: 4 new, 1 already stored; 8 new timings, 2 segments done",
    ]
    assert (ended.code, ended.err) == (0, note(config, database_path))
    assert stored_in(database_path) == [1, 2, 3, 4]
    nothing = "0 new, 0 already stored; nothing waits\n"
    assert ingest("--once", "--config", config).out == f"{a}: {nothing}{b}: {nothing}in all: {nothing}"


def test_a_dry_run_of_each_spool(spools: tuple[Path, Path], database_path: Path) -> None:
    """Named by options; every line says that it is one, nothing changes, and a record in both counts twice."""
    a, b = spools
    before = [sorted(each.iterdir()) for each in spools]
    ended = ingest("--dry-run", "--spool", a, "--spool", b, "--database", database_path)
    lines = ended.out.splitlines()
    assert [line.partition(" new")[0] for line in lines] == [
        f"dry run: {a}: 3",
        f"dry run: {b}: 2",
        "dry run: in all: 5",
    ]
    assert (ended.code, [sorted(each.iterdir()) for each in spools]) == (0, before)


def test_json_of_several(spools: tuple[Path, Path], config: Path, database_path: Path) -> None:
    """Sums under the names that one spool has, and under `spools` each as if it were alone."""
    a, b = spools
    (b / "c.seg").write_bytes(header_bytes(version=2))
    alone = [json.loads(ingest("--dry-run", "--json", "--config", config, "--spool", each).out) for each in spools]
    ended = ingest("--dry-run", "--json", "--config", config)
    report = json.loads(ended.out)
    assert ended.code == 1
    assert report.pop("spools") == alone
    assert [each.pop("spool") for each in alone] == [str(a), str(b)]
    assert report == {
        "dry_run": True,
        "database": str(database_path),
        "segments": 2,
        "measurements": 5,
        "duplicates": 0,
        "timings": 10,
        "decisions": 0,
        "rejected": 1,
        "rejected_by_reason": {"newer_format": 1},
        "rejections": alone[1]["rejections"],
        "doubtful": 0,
        "doubts": [],
        "unknown_ops": {},
        "torn_bytes": 0,
        "unreadable": [],
        "stopped": False,
    }
    assert report.keys() == alone[0].keys()


def test_a_spool_that_fails_does_not_hold_up_the_others(
    spools: tuple[Path, Path], config: Path, database_path: Path
) -> None:
    """It is an error, in its place in JSON, and the exit status is 1; the other spool's records are in."""
    a, b = spools
    shutil.rmtree(a)
    a.touch()
    ended = ingest("--once", "--json", "--config", config)
    report = json.loads(ended.out)
    assert ended.code == 1
    error = ended.err.removeprefix(note(config, database_path) + "error: ")
    assert error.startswith(f"{a}: cannot lock the spool: File exists")
    assert report["measurements"] == 2
    how = {"dry_run": False, "database": str(database_path)}
    assert report["spools"][0] == {"spool": str(a), **how, "error": error.rstrip("\n")}
    assert report["spools"][1]["spool"] == str(b)
    assert stored_in(database_path) == [3, 4]
    assert ingest("--once", "--config", config).out.splitlines()[0].startswith(f"{b}: 0 new")


def test_what_is_bad_is_told_with_its_spool(spools: tuple[Path, Path], config: Path) -> None:
    """A segment of each: the path says where."""
    for each in spools:
        (each / "bad.seg").write_bytes(header_bytes(version=2))
    ended = ingest("--once", "--config", config)
    assert [line.partition(" at offset")[0] for line in ended.err.splitlines()[1:]] == [
        f"error: {each}/bad.seg" for each in spools
    ]
    assert (ended.code, ended.out.splitlines()[-1]) == (
        1,
        "in all: 4 new, 1 already stored, 2 rejected; 8 new timings, 2 segments done",
    )


@pytest.mark.long
def test_what_ships_goes_into_the_first_spool(spools: tuple[Path, Path], config: Path, tmp_path: Path) -> None:
    """And a dry run says what would come of that, and of what waits there already."""
    _, b = spools
    said = [ingest(mode, "--bundled", "--config", config) for mode in ("--dry-run", "--once")]
    first, second = ([line.removeprefix("dry run: ") for line in ended.out.splitlines()] for ended in said)
    assert first[0] == second[0]
    assert second[0].endswith(f"{1 + len(Spool(bundled_data_dir()).sealed())} segments done")
    assert second[1] == f"{b}: 1 new, 1 already stored; 2 new timings, 1 segment done"


def test_reports_add_up() -> None:
    """Numbers, reasons and lists; not more than a hundred rejections."""
    rejections = tuple(Rejection("a.seg", n, Reason.TRUNCATED, "cut") for n in range(60))
    one = IngestReport(1, 2, 3, 4, 7, 60, {"truncated": 60}, rejections, 5, ("x",), stopped=True)
    both = IngestReport(2, 4, 6, 8, 14, 120, {"truncated": 120}, (rejections * 2)[:100], 10, ("x", "x"), stopped=True)
    assert one + one == both
    assert IngestReport() + one == one


# The status of several


def test_the_status_of_each_spool(spools: tuple[Path, Path], config: Path) -> None:
    """A block each, as if it were alone."""
    blocks = [ingest("status", "--spool", each).out for each in spools]
    assert [block.splitlines()[0].split() for block in blocks] == [["directory", str(each)] for each in spools]
    shown = ingest("status", "--config", config)

    def without_age(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("oldest_s")]

    assert without_age(shown.out) == without_age("\n".join(blocks))
    assert (shown.code, shown.err) == (0, note(config))


def test_json_of_the_status_of_several(spools: tuple[Path, Path], config: Path) -> None:
    """The sums, the age of the oldest, and each as if it were alone."""
    a, b = spools
    (b / "bad.seg").write_bytes(header_bytes(version=2))
    ingest("--once", "--config", config, "--spool", b)
    (b / "b.seg").write_bytes(segment_bytes([5]))
    os.utime(a / "a.seg", (0, 0))
    status = json.loads(ingest("status", "--json", "--config", config).out)
    alone = [json.loads(ingest("status", "--json", "--spool", each).out) for each in spools]
    ages = [[each.pop("oldest_s") for each in found] for found in (status["spools"], alone)]
    assert status.pop("oldest_s") == ages[0][0] > ages[0][1]
    assert status.pop("spools") == alone
    for each in alone:
        del each["directory"], each["ingest_pid"]
    assert status == {
        "segments": 2,
        "live_segments": 0,
        "bytes": alone[0]["bytes"] + alone[1]["bytes"],
        "quarantined": 1,
        "quarantined_by_reason": {"newer_format": 1},
        "quarantine_bytes": alone[1]["quarantine_bytes"],
        "unreadable": [],
    }
    assert status.keys() == alone[0].keys()


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_the_status_of_what_cannot_be_read(
    spools: tuple[Path, Path], config: Path, extra: Sequence[str], tmp_path: Path
) -> None:
    """It is an error; the other spool is shown."""
    _, b = spools
    no_folder = tmp_path / "file"
    no_folder.touch()
    ended = ingest("status", *extra, "--spool", no_folder, "--spool", b)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"error: {no_folder}: cannot list the spool: Not a directory")
    if extra:
        status = json.loads(ended.out)
        assert status["spools"][0] == {"directory": str(no_folder), "error": ended.err[len("error: ") : -1]}
        assert (status["segments"], status["spools"][1]["segments"]) == (1, 1)
    else:
        assert ended.out.splitlines()[0].split() == ["directory", str(b)]
    alone = ingest("status", *extra, "--spool", no_folder)
    assert alone == (1, "", ended.err)
