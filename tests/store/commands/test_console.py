from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from diode_store.command_line import console
from diode_store.command_line.render import cell_text, json_value, plain_table
from diode_store.errors import DatabaseError
from waiting import eventually

COMMAND = '''"""A command for tests.

More about it.
"""
from typing import Annotated
from diode_store.command_line import console
from diode_store.errors import SchemaError

app = console.make_app(__doc__)

@app.command()
def show(database: console.DatabaseOption, *, as_json: console.JsonOption = False) -> None:
    """Show where the warehouse is.

    Example: test show --json
    """
    console.print_rows(["database", "us"], [(database, 3.14159)], as_json=as_json, title="Where")

@app.command()
def fail() -> None:
    raise SchemaError("line one\\nline two")

@app.command()
def interrupt() -> None:
    raise KeyboardInterrupt

@app.command()
def ask() -> None:
    raise RuntimeError("Query interrupted")

@app.command()
def talk() -> None:
    for number in range(100_000):
        print(number)

if __name__ == "__main__":
    console.run(app, name="test")
'''


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """Return a script with a command as every component writes them."""
    path = tmp_path / "command.py"
    path.write_text(COMMAND)
    return path


def run(command: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a process of its own."""
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, str(command), *args], capture_output=True, text=True, env=environment, check=False
    )


def on_terminal(*command: str) -> str:
    """Run Python with a terminal for its output and return what that shows."""
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, *command], stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    return shown


def test_an_error_is_one_line_and_status_1(command: Path) -> None:
    """A DiodeError is one line on stderr, nothing on stdout, no traceback."""
    done = run(command, "fail")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "error: line one line two\n")


def test_an_interrupt_is_status_130(command: Path) -> None:
    """Ctrl-C ends a command without a traceback."""
    done = run(command, "interrupt")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_amid_work_of_duckdb_is_status_130(command: Path) -> None:
    """DuckDB has an error of its own for a Ctrl-C that it notices between two steps of a statement."""
    done = run(command, "ask")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_bad_usage_is_status_2(command: Path) -> None:
    """What the command line cannot mean is told apart from what failed."""
    assert run(command, "shwo").returncode == 2
    assert "Did you mean 'show'?" in run(command, "shwo").stderr
    assert run(command, "show", "--jsn").returncode == 2
    assert run(command).returncode == 2


def test_a_reader_that_goes_away_is_quiet(command: Path) -> None:
    """Output into `head` ends without a complaint."""
    with subprocess.Popen(
        [sys.executable, str(command), "talk"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "0\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_database_comes_from_option_environment_or_default(command: Path, tmp_path: Path) -> None:
    """The option wins over the variable, and the variable over the user's own warehouse."""
    answers = [
        run(command, "show", "--json", "--database", "a.db", DIODE_DATABASE_URL="b.db"),
        run(command, "show", "--json", DIODE_DATABASE_URL="b.db"),
        run(command, "show", "--json", XDG_DATA_HOME=str(tmp_path)),
    ]
    urls = [json.loads(answer.stdout)[0]["database"] for answer in answers]
    assert urls == ["a.db", "b.db", f"sqlite:///{tmp_path}/torch-diode/warehouse.db"]


def test_password_is_refused_on_the_command_line_only(command: Path) -> None:
    """A password that `ps` would show is bad usage; in the environment it is fine."""
    url = "postgresql://me:secret@db/w"
    refused = run(command, "show", "--database", url)
    assert refused.returncode == 2
    assert "a password on the command line is visible" in " ".join(refused.stderr.split())
    assert "secret" not in refused.stderr
    assert run(command, "show", "--json", DIODE_DATABASE_URL=url).returncode == 0


def test_help_has_the_options_and_the_example(command: Path) -> None:
    """Help says what a command does, its options with their variables, and an example."""
    shown = run(command, "show", "--help").stdout
    for part in (
        "Show where the warehouse is.",
        "--database URL",
        "DIODE_DATABASE_URL",
        "--json",
        "Example: test show",
    ):
        assert part in shown
    assert "A command for tests." in run(command, "-h").stdout
    assert "More about it." not in run(command, "-h").stdout


def test_rows_as_json_and_as_text(command: Path) -> None:
    """A script gets JSON with every digit; a pipe gets aligned columns."""
    assert json.loads(run(command, "show", "--json", "--database", "a.db").stdout) == [
        {"database": "a.db", "us": 3.14159}
    ]
    assert run(command, "show", "--database", "a.db").stdout == "database     us\na.db      3.142\n"


def test_rows_on_a_terminal(command: Path) -> None:
    """A person gets the same aligned columns under a title."""
    shown = on_terminal(str(command), "show", "--database", "a.db").replace("\r\n", "\n")
    assert shown == "Where\ndatabase     us\na.db      3.142\n"


def test_progress_is_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal a progress bar prints nothing, and still counts."""
    with console.progress("measuring", total=3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_progress_elsewhere_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that takes long says how far it is, also while nothing is reported."""
    monkeypatch.setattr(console, "_LINE_EVERY_S", 0.05)

    def told(line: str) -> bool:
        return any(each.startswith(line) for each in capsys.readouterr().err.splitlines())

    with console.progress("measuring", total=3000) as advance:
        for done in ("1,000", "2,000"):
            advance(1000)
            eventually(lambda done=done: told(f"measuring: {done} of 3,000, "))
    with console.progress("waiting"):
        eventually(lambda: told("waiting: "))
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_progress_shows_on_a_terminal() -> None:
    """On a terminal work that takes a while shows how far it is."""
    code = (
        "from diode_store.command_line import console; console._PROGRESS_AFTER_S = 0\n"
        "with console.progress('measuring', total=2) as advance: advance(1); advance(1)"
    )
    shown = on_terminal("-c", code)
    assert "measuring" in shown
    assert "2/2" in shown


def test_handle_errors_is_a_decorator_too(capsys: pytest.CaptureFixture[str]) -> None:
    """A function that is no command can end a process the same way."""

    @console.handle_errors()
    def fail() -> None:
        raise DatabaseError("gone")

    with pytest.raises(SystemExit) as ended:
        fail()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: gone\n"


def test_notes_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A remark does not get into what a script reads."""
    console.print_note("matched NVIDIA H200\x1b[31m")
    assert capsys.readouterr() == ("", "matched NVIDIA H200\\x1b[31m\n")


def test_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values are aligned for people and an object for scripts."""
    console.print_pairs({"a": 1, "longer": None})
    console.print_pairs({"a": 1, "longer": None}, as_json=True)
    assert capsys.readouterr().out == 'a       1\nlonger  -\n{\n  "a": 1,\n  "longer": null\n}\n'


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (12345678, "12345678"),
        (4738.1439, "4738"),
        (39.488, "39.49"),
        (0.11, "0.1100"),
        (0.00000012345, "1.235e-07"),
        (123456.7, "123457"),
        (0.0, "0.0"),
        (float("inf"), "inf"),
        (b"\x01\xab", "01ab"),
        (datetime(2026, 11, 20, 12, 30, 1, 5, tzinfo=UTC), "2026-11-20 12:30:01+00:00"),
        (["a", None, 1.5], "a, -, 1.500"),
        ("tab\tred\x1b[31m\n", "tab\\tred\\x1b[31m\\n"),
        ("größer", "größer"),
    ],
)
def test_cell_text(value: object, shown: str) -> None:
    """A value is one line of printable text, times with four digits."""
    assert cell_text(value) == shown


@dataclass(frozen=True)
class Pair:
    """A record to print."""

    left: bytes
    right: Any


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (Decimal("1.5"), 1.5),
        (b"\xff", "ff"),
        (Path("/x"), "/x"),
        (datetime(2026, 11, 20, tzinfo=UTC), "2026-11-20T00:00:00+00:00"),
        ({1: (1, {2})}, {"1": [1, [2]]}),
        (Pair(b"\x01", [float("nan")]), {"left": "01", "right": [None]}),
        (True, True),
    ],
)
def test_json_value(value: object, expected: object) -> None:
    """Whatever a query or a record holds becomes something that JSON can say."""
    assert json_value(value) == expected


def test_plain_table_aligns_numbers_to_the_right() -> None:
    """Names are on the left, numbers on the right, and no line ends in blanks."""
    rows = [("a", 1, None), ("longer", 20, "x")]
    assert plain_table(["name", "n", "note"], rows) == "name     n  note\na        1  -\nlonger  20  x"
    assert plain_table(["name"], []) == "name"
