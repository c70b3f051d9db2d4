"""`diode query` and `diode sync` from the command line."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store


def run_on_terminal(*args: str, columns: int = 100) -> str:
    """Run ``diode`` with its output on a terminal of some width and return that; no progress bar is in it."""
    program = Path(sys.executable).with_name("diode")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    streams: dict[str, int] = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([program, *args], **streams, env=environment) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait() == 0
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode().replace("\r\n", "\n"))


def test_query_prints_csv_into_a_pipe(warehouse: Store, diode: RunCommand) -> None:
    """A header, empty fields for NULL, JSON for lists, hexadecimal for bytes."""
    sql = "SELECT 5 AS n, NULL AS nothing, 'a,b' AS text, [1, 2] AS list, 1.5 AS x, true AS t, '\\xAB'::BLOB AS b"
    assert diode("query", sql) == (
        0,
        'n,nothing,text,list,x,t,b\n5,,"a,b","[1,2]",1.5,true,ab\n',
        "",
    )


def test_query_prints_json(warehouse: Store, diode: RunCommand) -> None:
    """One object a line; what JSON has no number for is null."""
    result = diode("query", "SELECT op, dtype, 'nan'::DOUBLE AS x FROM problems ORDER BY op", "--json")
    assert result.out == (
        '[\n{"op": "bmm", "dtype": "float16", "x": null},\n{"op": "mm", "dtype": "bfloat16", "x": null}\n]\n'
    )
    assert json.loads(diode("query", "SELECT 1 AS a WHERE false", "--json").out) == []


@pytest.mark.long
def test_query_prints_a_table_on_a_terminal(warehouse: Store) -> None:
    """NULL is spelled out and the rows are counted."""
    shown = run_on_terminal("query", "SELECT op, m, NULL AS nothing FROM problems ORDER BY op")
    lines = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [["bmm", "8", "NULL"], ["mm", "65", "NULL"]]
    assert "2 rows" in shown


@pytest.mark.long
def test_query_shows_on_a_terminal_what_fits(warehouse: Store, diode: RunCommand) -> None:
    """All columns of a view are too wide: the key columns come first, or a single row turns vertical; CSV stays."""
    sql = "SELECT * FROM observations ORDER BY op DESC, runtime_us"
    lines = run_on_terminal("query", sql, columns=80).splitlines()
    assert max(len(line) for line in lines if line.startswith(("│", "┃"))) <= 80
    assert lines[1].replace("┃", " ").split() == ["op", "m", "n", "k", "template", "runtime_us"]
    assert "too narrow for: outcome, dtype, b, " in " ".join(lines)
    vertical = run_on_terminal("query", f"{sql} LIMIT 1", columns=80).splitlines()
    header = diode("query", sql).out.partition("\n")[0].split(",")
    assert [line.split()[0] for line in vertical] == header
    assert dict(line.split(maxsplit=1) for line in vertical)["runtime_us"] == "80.00"


def test_query_formats_win_over_the_terminal(warehouse: Store) -> None:
    """``--csv`` and ``--json`` hold on a terminal too."""
    assert run_on_terminal("query", "SELECT 1 AS a", "--csv") == "a\n1\n"
    assert run_on_terminal("query", "SELECT 1 AS a", "--json") == '[\n{"a": 1}\n]\n'


def test_query_reads_sql_from_stdin(warehouse: Store) -> None:
    """A dash stands for standard input."""
    program = Path(sys.executable).with_name("diode")
    finished = subprocess.run(
        [program, "query", "-"],
        input="SELECT count(*) AS n\nFROM observations",
        text=True,
        capture_output=True,
        check=True,
    )
    assert finished.stdout == "n\n5\n"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM timings", "error: queries are read-only: DELETE is refused; use SELECT or EXPLAIN\n"),
        ("SELECT * FROM read_csv('/etc/passwd')", "the table function read_csv() is refused\n"),
        ("SELECT opp FROM problems", 'Candidate bindings: "op"'),
        ("SELECT now()", "cast it, as in now()::TIMESTAMP"),
    ],
)
def test_query_errors_are_one_line(warehouse: Store, diode: RunCommand, sql: str, expected: str) -> None:
    """Nothing is printed on stdout, one line on stderr, and the status is 1."""
    result = diode("query", sql)
    assert (result.code, result.out) == (1, "")
    assert expected in result.err
    assert result.err.count("\n") == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("suffix", [".csv", ".Csv.GZ", ".JSON", ".json.gz", ".parquet", ".Parquet"])
def test_query_writes_a_file(warehouse: Store, diode: RunCommand, tmp_path: Path, suffix: str) -> None:
    """The suffix names the format, in upper or lower case; a file holds what stdout would."""
    path = tmp_path / f"out{suffix}"
    sql = "SELECT op, m, INTERVAL '1 day' AS wait, [m, k] AS sizes FROM problems ORDER BY op"
    result = diode("query", sql, "-o", str(path))
    assert result == (0, "", f"{path}: 2 rows\n")
    if suffix.lower() == ".parquet":
        rows = pq.read_table(path).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("bmm", 8, "1 day", [8, 16]),
            ("mm", 65, "1 day", [65, 128]),
        ]
        return
    content = gzip.decompress(path.read_bytes()) if suffix.lower().endswith(".gz") else path.read_bytes()
    assert content.decode() == diode("query", sql, "--json" if ".json" in suffix.lower() else "--csv").out


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.parquet.gz", "csv"])
def test_query_refuses_a_file_of_an_unknown_format(
    warehouse: Store, diode: RunCommand, tmp_path: Path, name: str
) -> None:
    """The message lists the suffixes there are, and no file is made."""
    result = diode("query", "SELECT 1", "-o", str(tmp_path / name))
    assert result.code == 2
    assert "use one of .parquet, .csv, .csv.gz, .json, .json.gz" in " ".join(result.err.split())
    assert not (tmp_path / name).exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("suffix", [".csv", ".json", ".parquet"])
def test_query_leaves_no_part_of_a_file(warehouse: Store, diode: RunCommand, tmp_path: Path, suffix: str) -> None:
    """A query that fails on its way leaves nothing, and a file that is there is replaced with --force alone."""
    path = tmp_path / f"out{suffix}"
    fails = "SELECT CASE WHEN range < 290000 THEN 1 ELSE error('too far') END AS a FROM range(300_000)"
    result = diode("query", fails, "-o", str(path))
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "too far" in result.err
    assert [found.name for found in tmp_path.glob("out*")] == []
    path.write_text("mine")
    for sql, options in (("SELECT 1 AS a", ()), (fails, ("--force",))):
        assert diode("query", sql, "-o", str(path), *options).code == 1
        assert path.read_text() == "mine"
    assert diode("query", "SELECT 1 AS a", "-o", str(path), "--force").code == 0
    assert path.read_bytes() != b"mine"


@pytest.mark.parametrize("option", ["--json", "--csv", "--explain"])
def test_a_file_and_another_format(warehouse: Store, diode: RunCommand, tmp_path: Path, option: str) -> None:
    """The suffix alone names a file's format, and a plan is no table."""
    assert diode("query", "SELECT 1", "-o", str(tmp_path / "out.csv"), option).code == 2


def test_query_of_two_columns_with_one_name(warehouse: Store, diode: RunCommand, tmp_path: Path) -> None:
    """A JSON object cannot hold both; CSV can."""
    assert diode("query", "SELECT 1 AS a, 2 AS a", "--csv").out == "a,a\n1,2\n"
    result = diode("query", "SELECT 1 AS a, 2 AS a", "--json")
    assert (result.code, result.out) == (1, "")
    assert "give one another name with AS" in result.err
    assert diode("query", "SELECT 1 AS a, 2 AS a", "-o", str(tmp_path / "out.parquet")).err == result.err


@pytest.mark.parametrize("command", [("query", "SELECT 1"), ("fastest", "--hardware", "h200")])
def test_two_formats_at_once_are_bad_usage(warehouse: Store, diode: RunCommand, command: tuple[str, ...]) -> None:
    """``--json --csv`` exits with 2."""
    result = diode(*command, "--json", "--csv")
    assert result.code == 2
    assert "exclude each other" in result.err


def test_query_without_a_warehouse(diode: RunCommand, tmp_path: Path) -> None:
    """The remedy is named."""
    result = diode("query", "SELECT 1", "--database", str(tmp_path / "none.db"))
    assert result.code == 1
    assert f"create it with `diode db upgrade --database {tmp_path}/none.db`" in result.err


def test_no_sync_reads_the_cache_as_it_is(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Without a sync, new measurements are not seen; with one they are."""
    count = ("query", "SELECT count(*) AS n FROM measurements")
    assert diode(*count, "--no-sync").out == "n\n0\n"
    assert diode(*count).out == "n\n2\n"
    warehouse.write([make_measurement(9)])
    assert diode(*count, "--no-sync").out == "n\n2\n"
    assert diode(*count).out == "n\n3\n"


def test_sync_says_what_it_did(
    warehouse: Store, diode: RunCommand, database_path: Path, make_measurement: MakeMeasurement
) -> None:
    """First everything, then nothing, and why it started over if it had to."""
    cache = database_path.with_suffix(".cache")
    first = diode("sync")
    assert first.out.startswith(f"{cache}: 2 measurements with 5 timings copied; holds 2 measurements, 5 timings (")
    assert diode("sync").out.startswith(f"{cache}: nothing to do; holds 2 measurements, 5 timings (")
    again = json.loads(diode("cache", "rebuild", "--json").out)
    assert {name: again[name] for name in ("added", "added_timings", "dropped", "rebuilt", "has_new_base")} == {
        "added": 2,
        "added_timings": 5,
        "dropped": 0,
        "rebuilt": "it was asked for",
        "has_new_base": False,
    }
    (cache / "state.json").write_text("{")
    assert "the cache was rebuilt: " in diode("query", "SELECT 1").err
    warehouse.write([make_measurement(9, runtimes=(1.5,))])
    assert ": 1 measurement with 1 timing copied" in diode("sync").out
