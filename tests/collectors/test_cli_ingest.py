from __future__ import annotations

import gzip
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from spool_samples import frames_of, header_bytes, sample, segment_bytes

from diode_collectors import cli
from diode_collectors.pack import environment_of, time_of
from diode_collectors.segment import END_BYTES, HEADER_BYTES, end_to_bytes, frame_to_bytes, read_segment
from diode_collectors.spool import Spool, SpoolWriter
from diode_store import codec
from diode_store.errors import ImportFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = Path(sys.executable).with_name("diode-ingest")
H200 = ("--hardware", "NVIDIA H200")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def ingest(*args: object) -> Ended:
    """Run ``diode-ingest ARGS...`` in this process, as the console script would."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.main([str(arg) for arg in args])
    code = ended.value.code
    return Ended(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return an empty spool."""
    path = tmp_path / "spool"
    path.mkdir()
    return path


@pytest.fixture
def where(spool: Path, database_path: Path) -> Sequence[object]:
    """Return the options that name a spool and a warehouse."""
    return ("--spool", spool, "--database", database_path)


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


def test_json(spool: Path, where: Sequence[object]) -> None:
    """Scripts get every count."""
    (spool / "a.seg").write_bytes(segment_bytes([1, 2])[:-END_BYTES])
    ended = ingest("--once", "--json", *where)
    report = json.loads(ended.out)
    rejection = report.pop("rejections")[0]
    assert rejection[:3] == ["a.seg", len(segment_bytes([1, 2])) - END_BYTES, "truncated"]
    assert report == {
        "spool": str(spool),
        "dry_run": False,
        "segments": 1,
        "measurements": 2,
        "duplicates": 0,
        "timings": 4,
        "rejected": 1,
        "rejected_by_reason": {"truncated": 1},
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
        assert ended.err == f"error: {spool}/a.seg: cannot be read: Is a directory; check its owner and its mode\n"


def test_another_ingester_at_work(spool: Path, where: Sequence[object]) -> None:
    """--once is refused while a daemon has the spool; a dry run and a look at the status are not."""
    with Spool(spool).lock():
        ended = ingest("--once", *where)
        assert ended.code == 1
        assert f"another diode-ingest (pid {os.getpid()})" in ended.err
        assert ingest("--dry-run", *where).code == 0
        assert json.loads(ingest("status", "--json", "--spool", spool).out)["ingest_pid"] == os.getpid()


def test_a_password_on_the_command_line_is_refused(spool: Path) -> None:
    """A password would show in ps, so it is bad usage, and the message does not repeat it."""
    ended = ingest("--once", "--spool", spool, "--database", "postgresql://user:geheim@host/db")
    assert ended.code == 2
    assert "geheim" not in ended.err
    assert "DIODE_DATABASE_URL" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--spool", "x"), "say what to do"),
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


def test_it_starts_quickly() -> None:
    """The help comes in well under half a second, and needs neither database nor torch."""
    code = (
        "import sys, diode_collectors.cli; print(*sorted({'torch', 'sqlalchemy', 'numpy', 'rich'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == []
    seconds = []
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run([PROGRAM, "--help"], check=True, capture_output=True)
        seconds.append(time.monotonic() - begin)
    assert min(seconds) < 0.5


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
    assert lines[3] == f"error: {absent}: cannot be read: No such file or directory; check the path and its permissions"


def test_validate_json(spool: Path) -> None:
    """Scripts get a list with the problems of each file."""
    (spool / "a.seg").write_bytes(segment_bytes([1])[:-END_BYTES])
    ended = ingest("validate", "--json", spool / "a.seg")
    (report,) = json.loads(ended.out)
    assert (ended.code, report["frames"], report["timings"], len(report["problems"])) == (1, 1, 2, 1)


# pack


def test_pack_and_ingest(jsonl_path: Path, tmp_path: Path, where: Sequence[object], spool: Path) -> None:
    """Real rows become a segment that validates and ingests, with what the options said."""
    environment = tmp_path / "environment.json"
    environment.write_text('{"torch": "2.11.0+cu130", "triton": "3.6.0", "template_hashes": {"triton::mm": "d4"}}')
    ended = ingest(
        *("pack", *H200, "--environment", environment, "--measured-at", "2026-11-20T12:00:00+01:00"),
        *("--dataset", "excerpt", "--licence", "MIT", "--search-space", "SAMPLE", "-o", spool, jsonl_path),
    )
    assert (ended.code, ended.out) == (0, f"{spool}/excerpt-0000.seg\n")
    assert ended.err.startswith("6 measurements, ")
    (segment,) = Spool(spool).sealed()
    measurement = codec.decode(next(read_segment(segment)).record_bytes())
    assert (measurement.hardware.name, measurement.hardware.multiprocessors) == ("NVIDIA H200", 132)
    assert (measurement.environment.torch, measurement.environment.driver) == ("2.11.0+cu130", "unknown")
    assert measurement.environment.template_hashes == {"triton::mm": "d4"}
    assert (measurement.dataset, measurement.licence, measurement.search_space) == ("excerpt", "MIT", "SAMPLE")
    assert str(measurement.measured_at) == "2026-11-20 11:00:00+00:00"
    assert ingest("validate", spool).code == 0
    assert ingest("--once", *where).out.startswith("6 new, 0 already stored")


def test_pack_is_reproducible(jsonl_path: Path, tmp_path: Path) -> None:
    """The same rows, plain or compressed, twice or repeated, give the same bytes; a shared file mode."""
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(jsonl_path.read_bytes()))
    for number, files in enumerate([(jsonl_path,), (packed,), (jsonl_path, packed)]):
        ended = ingest("pack", *H200, "--dataset", "d", "-o", tmp_path / str(number), *files)
        assert ended.err.startswith("6 measurements, ")
    contents = {(tmp_path / str(number) / "d-0000.seg").read_bytes() for number in range(3)}
    assert len(contents) == 1
    assert (tmp_path / "0" / "d-0000.seg").stat().st_mode & 0o777 == 0o644


def test_pack_names_segments_after_the_file(jsonl_path: Path, tmp_path: Path) -> None:
    """Without a data set's name the first file's is used."""
    assert ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path).out == f"{tmp_path}/o/h200_excerpt-0000.seg\n"


def test_pack_begins_new_segments(jsonl_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data larger than a segment goes into several, in order."""
    monkeypatch.setattr("diode_collectors.pack.pack.__kwdefaults__", {"segment_bytes": 4000})
    ended = ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path)
    names = [Path(line).name for line in ended.out.splitlines()]
    assert len(names) > 1
    assert names == [f"h200_excerpt-{i:04d}.seg" for i in range(len(names))]
    frames = [frame for name in names for frame in read_segment(tmp_path / "o" / name)]
    assert len({frame.uid for frame in frames}) == len(frames) == 6
    assert [frame.error for frame in frames if frame.error] == []


def test_pack_refuses_a_bad_line(jsonl_path: Path, tmp_path: Path) -> None:
    """A bad line is named with its file, and nothing is written."""
    with jsonl_path.open("a") as file:
        file.write('{"op": "mm"}\n')
    ended = ingest("pack", *H200, "-o", tmp_path / "o", jsonl_path)
    assert ended.code == 1
    assert ended.err.startswith(f"error: {jsonl_path}:7: ")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--hardware", "Abacus"),
            "unknown hardware 'Abacus'; name it in each row of the file, or use one of: NVIDIA B200,",
        ),
        ((*H200, "--measured-at", "yesterday"), "'yesterday' is no time; write it like 2026-11-20 or"),
        ((*H200, "--environment", "/absent.json"), "/absent.json: no environment can be read from it"),
        ((), "the row names no hardware"),
    ],
)
def test_pack_with_bad_options(jsonl_path: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Each is one line that names the remedy."""
    ended = ingest("pack", *arguments, "-o", tmp_path / "o", jsonl_path)
    assert ended.code == 1
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_pack_without_its_file(tmp_path: Path) -> None:
    """A file that is not there, or no gzip, is named."""
    ended = ingest("pack", *H200, "-o", tmp_path / "o", tmp_path / "absent.jsonl")
    assert (ended.code, ended.err) == (
        1,
        f"error: {tmp_path}/absent.jsonl: cannot be read: No such file or directory; check the path\n",
    )
    (tmp_path / "plain.jsonl.gz").write_text("{}\n")
    assert (
        f"{tmp_path}/plain.jsonl.gz:1: " in ingest("pack", *H200, "-o", tmp_path / "o", tmp_path / "plain.jsonl.gz").err
    )


@pytest.mark.parametrize(
    "content", ["[]", '{"pytorch": "2"}', '{"torch": 2}', '{"template_hashes": ["x"]}', "{", "[" * 9999]
)
def test_an_environment_that_is_none(tmp_path: Path, content: str) -> None:
    """Anything but an object of known texts is refused with the file's name."""
    path = tmp_path / "e.json"
    path.write_text(content)
    with pytest.raises(ImportFileError, match=r"e\.json: "):
        environment_of(path)


def test_times() -> None:
    """A time without a zone is UTC; a date is its midnight."""
    assert time_of("2026-11-20").isoformat() == "2026-11-20T00:00:00+00:00"
    assert time_of("2026-11-20T12:30:00+01:00").utcoffset() is not None
