from __future__ import annotations

import gc
import json
import os
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from run_ingest import PROGRAM, ingest
from spool_samples import frames_of, header_bytes, sample, segment_bytes

import samples
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.exchange import records
from diode_store.warehouse.hardware import list_hardware
from diode_store.warehouse.store import Store
from diode_store.wire.segment_layout import END_BYTES, HEADER_BYTES, end_to_bytes, frame_to_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def count(database: Path) -> int:
    """Return how many measurements a warehouse holds."""
    connection = sqlite3.connect(database)
    (number,) = connection.execute("SELECT count(*) FROM measurements").fetchone()
    connection.close()
    return int(number)


# --once and --dry-run


def test_once(spool: Path, where: Sequence[object], database_path: Path) -> None:
    """It says how many are new and how many were there; twice adds nothing; nothing waiting is fine."""
    content = segment_bytes([1, 2, 3])
    (spool / "a.seg").write_bytes(content)
    assert ingest("--once", *where) == (0, "3 new, 0 already stored; 6 new timings, 1 segment done\n", "")
    (spool / "a.seg").write_bytes(content)
    assert ingest("--once", *where) == (0, "0 new, 3 already stored; 0 new timings, 1 segment done\n", "")
    assert ingest("--once", *where) == (0, f"0 new, 0 already stored; nothing waits in {spool}\n", "")
    assert count(database_path) == 3


def test_the_garbage_collector_is_left_as_it_was(where: Sequence[object]) -> None:
    """What ingesting freezes is collected again afterwards; else whole modules would outlive the interpreter."""
    ingest("--once", *where)
    assert gc.get_freeze_count() == 0


def test_settings_come_from_the_environment(spool: Path, database_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_SPOOL and DIODE_DATABASE_URL name what no option does; an option wins."""
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    monkeypatch.setenv("DIODE_SPOOL", str(spool))
    monkeypatch.setenv("DIODE_DATABASE_URL", f"sqlite:///{database_path}")
    assert ingest("--once", "--spool", spool.parent / "other").out.startswith("0 new")
    assert ingest("--once").out.startswith("1 new")
    assert json.loads(ingest("status", "--json").out)["directory"] == str(spool)


def test_dry_run(spool: Path, where: Sequence[object], database_path: Path) -> None:
    """A dry run says what would happen, and nothing does."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2]))
    ended = ingest("--dry-run", *where)
    assert ended == (0, "dry run: 2 new, 0 already stored; 4 new timings, 1 segment done\n", "")
    assert [path.name for path in spool.iterdir()] == ["a.seg"]
    assert count(database_path) == 0


def test_dry_run_says_what_would_go_to_quarantine(spool: Path, where: Sequence[object]) -> None:
    """Nothing is in quarantine after a dry run, and it does not say so."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2])[:-30])
    (spool / "b.seg").write_bytes(header_bytes(version=2))
    ended = ingest("--dry-run", *where)
    assert ended.code == 1
    assert [line.rpartition("; ")[2] for line in ended.err.splitlines()] == [
        "ingesting would put it into quarantine"
    ] * 2
    assert not (spool / "quarantine").exists()


def test_json(spool: Path, where: Sequence[object], database_path: Path) -> None:
    """Scripts get every count."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2])[:-END_BYTES])
    ended = ingest("--once", "--json", *where)
    report = json.loads(ended.out)
    rejection = report.pop("rejections")[0]
    assert rejection[:3] == ["a.seg", len(segment_bytes([1, 2])) - END_BYTES, "truncated"]
    assert report == {
        "spool": str(spool),
        "dry_run": False,
        "database": str(database_path),
        "segments": 1,
        "measurements": 2,
        "duplicates": 0,
        "timings": 4,
        "decisions": 0,
        "rejected": 1,
        "rejected_by_reason": {"truncated": 1},
        "doubtful": 0,
        "doubts": [],
        "unknown_ops": {},
        "torn_bytes": 0,
        "unreadable": [],
        "stopped": False,
    }
    assert ended.code == 1


@pytest.mark.parametrize("command", [("--once",), ("--dry-run",), ("run",)])
def test_a_warehouse_that_is_not_there(spool: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Without a warehouse, one line names the command that makes it; the spool is untouched."""
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    ended = ingest(*command, "--spool", spool, "--database", tmp_path / "absent.db")
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert (ended.code, ended.out, len(errors)) == (1, "", 1)
    assert "diode db upgrade" in errors[0]
    assert (spool / "a.seg").exists()


def test_an_old_warehouse(where: Sequence[object], database_path: Path) -> None:
    """A warehouse of another revision is refused with the command to run."""
    connection = sqlite3.connect(database_path)
    connection.execute("UPDATE diode_schema_version SET version_num = '0000'")
    connection.commit()
    connection.close()
    ended = ingest("--once", *where)
    assert ended.code == 1
    assert "0000" in ended.err


def test_bad_input_is_told_and_the_rest_goes_on(spool: Path, where: Sequence[object], database_path: Path) -> None:
    """Each bad thing is one line that names file, offset, reason and remedy; exit status 1; good ones are in."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2])[:-30])
    first = frames_of([3])[0]
    (spool / "b.seg").write_bytes(header_bytes() + first[:-1] + b"?" + frames_of([4])[0] + end_to_bytes(2))
    ended = ingest("--once", *where)
    lines = ended.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"error: {spool}/a.seg at offset ")
    assert "cut short" in lines[0]
    assert lines[1] == (
        f"error: {spool}/b.seg at offset {HEADER_BYTES}: the frame's CRC does not match its bytes; "
        "what is left of it is in the quarantine; measure again what it held"
    )
    assert ended.out == "2 new, 0 already stored, 2 rejected; 4 new timings, 2 segments done\n"
    assert (ended.code, count(database_path)) == (1, 2)
    assert ingest("--once", *where).code == 0


def test_an_unreadable_segment_fails(spool: Path, where: Sequence[object]) -> None:
    """A segment that cannot be read is an error every time."""
    (spool / "a.seg").mkdir()
    for _ in range(2):
        ended = ingest("--once", *where)
        assert ended.code == 1
        assert ended.err == f"error: {spool}/a.seg: cannot be read: it is not a regular file; move it away\n"


@pytest.mark.long
def test_another_ingester_at_work(
    spool: Path, where: Sequence[object], database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--once leaves the spool to it, which is no failure; a dry run and a look at the status do not mind it."""
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    with Spool(spool).lock():
        running = f"{spool}: diode-ingest is running on this spool (pid {os.getpid()}) and "
        running += "moves its records into its own warehouse"
        said = f"{running}; this command wrote none of them to {database_path}\n"
        assert ingest("--once", *where) == (0, said, "")
        monkeypatch.setenv("DIODE_DATABASE_URL", str(database_path))
        assert ingest("--once", "--spool", spool) == (0, f"{running}\n", "")
        report = json.loads(ingest("--once", "--json", *where).out)
        assert (report["ingest_pid"], report["spool"], report["measurements"]) == (os.getpid(), str(spool), 0)
        assert ingest("--once", "--bundled", *where) == (0, said, "")
        assert len(Spool(spool).sealed()) > 1
        assert ingest("--dry-run", *where).code == 0
        assert json.loads(ingest("status", "--json", "--spool", spool).out)["ingest_pid"] == os.getpid()


def test_bundled_is_every_segment_that_ships(
    where: Sequence[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    """--bundled brings each segment of the folder, whatever its device or name."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    for number, device in enumerate((samples.H200, samples.H100, samples.H100_PCIE)):
        with (shipped / f"{number}.seg").open("wb") as stream:
            records.write(stream, [samples.measurement(number, hardware=device)], as_segment=True)
    monkeypatch.setattr("diode_store.system.resources.bundled_data_dir", lambda: shipped)
    assert ingest("--once", "--bundled", *where).code == 0
    with Store.open(database_url) as store, store.engine.connect() as connection:
        found = {row.name: row.measurements for row in list_hardware(connection)}
    assert found == {"NVIDIA H200": 1, "NVIDIA H100 80GB HBM3": 1, "NVIDIA H100 PCIe": 1}


def test_a_password_on_the_command_line_is_refused(spool: Path) -> None:
    """A password would show in ps, so it is bad usage, and the message does not repeat it."""
    ended = ingest("--once", "--spool", spool, "--database", "postgresql://user:geheim@host/db")
    assert ended.code == 2
    assert "geheim" not in ended.err
    assert "DIODE_DATABASE_URL" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--spool", "x"), "choose --once"),
        (("--once", "status"), "--once does not go before 'status'"),
        (("--spool", "x", "run"), "--spool does not go before 'run'"),
        (("run", "--poll-interval", "0"), "poll-interval"),
        (("nonsense",), "nonsense"),
    ],
)
def test_bad_usage(arguments: tuple[str, ...], message: str) -> None:
    """What makes no sense exits with 2 and says why."""
    ended = ingest(*arguments)
    assert ended.code == 2
    assert message in ended.err


def test_help_without_arguments() -> None:
    """Without arguments the help comes, with an example."""
    ended = ingest()
    assert "Example: diode-ingest --once" in ended.out + ended.err


def test_help_imports_little() -> None:
    """The help needs neither database nor torch, whose imports take seconds."""
    code = "import sys\nfrom diode_collectors.ingest.commands.ingest import main\n"
    code += "sys.argv = ['diode-ingest', '--help']\ntry: main()\n"
    code += "finally: print(*sorted({'torch', 'sqlalchemy', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.startswith("Usage")
    assert finished.stderr.split() == []


def test_the_umbrella_command(spool: Path, where: Sequence[object]) -> None:
    """`diode ingest` is the same command."""
    (spool / "a.seg").write_bytes(segment_bytes([1]))
    finished = subprocess.run(
        [PROGRAM.with_name("diode"), "ingest", "--once", *map(str, where)], capture_output=True, text=True, check=True
    )
    assert finished.stdout.startswith("1 new")


# status, validate


def test_status(spool: Path) -> None:
    """What waits, what is being written and what is in quarantine."""
    with SpoolWriter(spool) as writer:
        writer.append(sample(1))
        writer.sync()
        (spool / "a.seg").write_bytes(segment_bytes([1]))
        ended = ingest("status", "--spool", spool, "--json")
    status = json.loads(ended.out)
    assert (status["segments"], status["live_segments"], status["quarantined"], status["ingest_pid"]) == (1, 1, 0, None)
    assert 0 <= status["oldest_s"] < 60
    assert "segments" in ingest("status", "--spool", spool).out


def test_status_counts_the_reasons_of_the_quarantine(spool: Path, where: Sequence[object]) -> None:
    """Each reason with how many files have it; what somebody else put there is unknown."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2])[:-END_BYTES])
    (spool / "b.seg").write_bytes(header_bytes(version=2))
    (spool / "c.seg").write_bytes(header_bytes(version=3))
    assert ingest("--once", *where).code == 1
    (spool / "quarantine" / "note.txt").touch()
    status = json.loads(ingest("status", "--spool", spool, "--json").out)
    assert status["quarantined"] == 4
    assert status["quarantined_by_reason"] == {"newer_format": 2, "truncated": 1, "unknown": 1}
    assert "newer_format 2, truncated 1, unknown 1" in ingest("status", "--spool", spool).out


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_validate_nothing(spool: Path, extra: tuple[str, ...]) -> None:
    """A folder without segments is no good news: one line says so."""
    ended = ingest("validate", spool, *extra)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {spool}: no segments there; name segments")
    assert ended.err.count("\n") == 1


def test_validate(spool: Path) -> None:
    """Good segments exit with 0, named or in a folder."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2]))
    (spool / "b.open").write_bytes(segment_bytes([3], sealed=False) + b"torn")
    before = {path: path.read_bytes() for path in spool.iterdir()}
    assert ingest("validate", spool) == (
        0,
        f"{spool}/a.seg: 2 records, 4 timings, all good\n{spool}/b.open: 1 record, 2 timings, all good\n",
        "",
    )
    assert {path: path.read_bytes() for path in spool.iterdir()} == before


def test_validate_names_what_is_bad(spool: Path) -> None:
    """Each bad frame is one line with file, offset, reason and remedy, and the exit status is 1."""
    frames = [frame_to_bytes(bytes(16), b"?"), frames_of([1], compress=False)[0]]
    bad = spool / "bad.seg"
    bad.write_bytes(header_bytes(compress=False) + b"".join(frames))
    future = spool / "future.seg"
    future.write_bytes(header_bytes(version=2))
    absent = spool / "absent.seg"
    ended = ingest("validate", bad, future, absent)
    offset = HEADER_BYTES + len(frames[0]) + len(frames[1])
    remedy = "`diode-ingest` keeps the good records and puts this into quarantine"
    assert ended.code == 1
    assert ended.out.splitlines()[0] == f"{bad}: 1 record, 2 timings, 2 bad"
    lines = ended.err.splitlines()
    assert lines[0] == f"error: {bad}: offset 40: a record must be a map, not int; {remedy}"
    assert lines[1].startswith(f"error: {bad}: offset {offset}: the segment was sealed but is cut short")
    assert lines[1].endswith(remedy)
    assert lines[2].startswith(f"error: {future}: offset 0: spool format 2 is not 1")
    assert lines[2].endswith("upgrade torch-diode")
    assert lines[3] == f"error: {absent}: cannot be read: No such file or directory; check the path"


def test_validate_json(spool: Path) -> None:
    """Scripts get a list with the problems of each file."""
    (spool / "a.seg").write_bytes(segment_bytes([1])[:-END_BYTES])
    ended = ingest("validate", "--json", spool / "a.seg")
    (report,) = json.loads(ended.out)
    assert (ended.code, report["frames"], report["timings"], len(report["problems"])) == (1, 1, 2, 1)
