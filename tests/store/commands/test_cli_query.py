"""`diode query`, `diode fastest` and `diode sync`, as somebody types them."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from diode_store.commands import fastest, wide_table
from diode_store.normalise import kernel_config
from diode_store.records import Environment, Outcome, Problem, TensorSpec, Timing
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.hardware import add_alias

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

VENDOR = kernel_config("mm", {})
FAST = kernel_config(
    "triton_mm",
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 4, "num_warps": 8},
)
SLOW = kernel_config("triton_mm_persistent_tma", {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3})


@pytest.fixture
def warehouse(
    store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """Return a warehouse that is the default one, with an mm and a bmm on an H200."""
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    bmm = Problem.create(
        "bmm", (TensorSpec("float16", (3, 8, 16), (128, 16, 1)), TensorSpec("float16", (3, 16, 24), (384, 1, 16)))
    )
    times = (Timing(VENDOR, 100.0), Timing(FAST, 80.0), Timing(SLOW, 82.5))
    failed = Timing(SLOW, None, Outcome.OUT_OF_RESOURCES)
    store.write(
        [
            make_measurement(1, timings=times),
            make_measurement(2, problem=bmm, timings=(Timing(VENDOR, 7.25), failed)),
        ]
    )
    return store


def run_on_terminal(*args: str, columns: int = 100) -> str:
    """Run ``diode`` on a terminal of some width and return what that shows."""
    program = Path(sys.executable).with_name("diode")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([program, *args], stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
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
        process.wait()
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


def test_query_prints_a_table_on_a_terminal(warehouse: Store) -> None:
    """NULL is spelled out and the rows are counted."""
    shown = run_on_terminal("query", "SELECT op, m, NULL AS nothing FROM problems ORDER BY op")
    lines = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [["bmm", "8", "NULL"], ["mm", "65", "NULL"]]
    assert "2 rows" in shown


def test_query_names_columns_that_do_not_fit(warehouse: Store) -> None:
    """A wide table is cut between columns, and says what is missing."""
    shown = run_on_terminal("query", "SELECT * FROM coverage", columns=60)
    assert max(len(line) for line in shown.splitlines() if line.startswith(("│", "┃"))) <= 60
    assert "too narrow for: " in shown
    assert "last_measured_at" in shown


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


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".json", ".json.gz", ".parquet"])
def test_query_writes_a_file(warehouse: Store, diode: RunCommand, tmp_path: Path, suffix: str) -> None:
    """The suffix names the format; a file holds what stdout would."""
    path = tmp_path / f"out{suffix}"
    sql = "SELECT op, m, INTERVAL '1 day' AS wait, [m, k] AS sizes FROM problems ORDER BY op"
    result = diode("query", sql, "-o", str(path))
    assert result == (0, "", f"{path}: 2 rows\n")
    if suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("bmm", 8, "1 day", [8, 16]),
            ("mm", 65, "1 day", [65, 128]),
        ]
        return
    content = gzip.decompress(path.read_bytes()) if suffix.endswith(".gz") else path.read_bytes()
    assert content.decode() == diode("query", sql, "--json" if ".json" in suffix else "--csv").out


@pytest.mark.parametrize("name", ["out.xlsx", "out", "out.parquet.gz", "csv"])
def test_query_refuses_a_file_of_an_unknown_format(
    warehouse: Store, diode: RunCommand, tmp_path: Path, name: str
) -> None:
    """The message lists the suffixes there are, and no file is made."""
    result = diode("query", "SELECT 1", "-o", str(tmp_path / name))
    assert result.code == 2
    assert "it can be .parquet, .csv, .csv.gz, .json, .json.gz" in " ".join(result.err.split())
    assert not (tmp_path / name).exists()


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


def test_no_sync_reads_the_lake_as_it_is(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Without a sync, new measurements are not seen; with one they are."""
    count = ("query", "SELECT count(*) AS n FROM measurements")
    assert diode(*count, "--no-sync").out == "n\n0\n"
    assert diode(*count).out == "n\n2\n"
    warehouse.write([make_measurement(9)])
    assert diode(*count, "--no-sync").out == "n\n2\n"
    assert diode(*count).out == "n\n3\n"


def test_sync_says_what_it_did(warehouse: Store, diode: RunCommand, database_path: Path) -> None:
    """First everything, then nothing, and why it started over if it had to."""
    lake = database_path.with_suffix(".lake")
    first = diode("sync")
    assert first.out.startswith(f"{lake}: 2 measurements with 5 timings copied; holds 2 measurements, 5 timings (")
    assert diode("sync").out.startswith(f"{lake}: nothing to do; holds 2 measurements, 5 timings (")
    again = json.loads(diode("sync", "--rebuild", "--json").out)
    assert {name: again[name] for name in ("added", "added_timings", "dropped", "rebuilt", "segments")} == {
        "added": 2,
        "added_timings": 5,
        "dropped": 0,
        "rebuilt": "it was asked for",
        "segments": 1,
    }
    (lake / "manifest.json").write_text("{")
    assert "the lake was rebuilt: " in diode("query", "SELECT 1").err


def test_fastest_prints_a_table(warehouse: Store, diode: RunCommand) -> None:
    """What was matched, then a line a problem: kernels written short, times, and how far the vendor is behind."""
    result = diode("fastest", "--hardware", "h200")
    assert result.err == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"
    header, bmm, mm = (line.split("  ") for line in result.out.splitlines())
    columns = ["problem", "kernel", "us", "vendor us", "speedup", "runner-up", "its us", "ties"]
    assert [cell.strip() for cell in header if cell] == columns
    assert [cell.strip() for cell in bmm if cell] == [
        *("bmm fp16 3x8x24x16 nt", "aten::mm", "7.250", "7.250", "1.000", "-", "-", "0"),
    ]
    assert [cell.strip() for cell in mm if cell] == [
        *("mm bf16 65x256x128 nn", "mm 128x64x32 s4 w8 g8", "80.00", "100.0", "1.250"),
        *("mm_persistent_tma 64x64x64 s3", "82.50", "1"),
    ]


def test_fastest_as_json(warehouse: Store, diode: RunCommand) -> None:
    """Every column, by the names that ``Row`` documents."""
    [row] = json.loads(diode("fastest", "--hardware", "NVIDIA H200", "--op", "mm", "--json").out)
    assert list(row) == list(fastest.Row._fields)
    assert len(row.pop("tie_config_ids")) == 2
    row.pop("config_id")
    assert row == {
        "hardware": "NVIDIA H200",
        "torch": "2.11.0+cu130",
        "op": "mm",
        "dtype": "bfloat16",
        "b": 1,
        "m": 65,
        "n": 256,
        "k": 128,
        "layout": "nn",
        "tf32": False,
        "kernel": "triton::mm 128x64x32 s4 w8 g8",
        "runtime_us": 80.0,
        "vendor_us": 100.0,
        "speedup": 1.25,
        "runner_up": "triton::mm_persistent_tma 64x64x64 s3",
        "runner_up_us": 82.5,
        "ties": 1,
        "repeats": 1,
    }


def test_fastest_compares_with_the_vendor_on_the_same_problem(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """The vendor's time is that of the row's own problem, environment and device, whatever else was measured."""
    for number, us in ((11, 40.0), (12, 30.0), (13, 20.0)):
        times = (Timing(VENDOR, us), Timing(FAST, 10.0))
        warehouse.write([make_measurement(number, timings=times)])
    rows = json.loads(diode("fastest", "--hardware", "h200", "--op", "mm", "--json").out)
    assert {row["m"]: row["vendor_us"] for row in rows} == {65: 100.0, 75: 40.0, 76: 30.0, 77: 20.0}


def test_fastest_tells_tf32_from_float32(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """One product as TF32 and without are two rows, by their names, and each can be asked for."""
    inputs = tuple(TensorSpec("float32", (64, 64), (64, 1)) for _ in range(2))
    for number, asked in ((11, True), (12, False)):
        problem = Problem.create("mm", inputs, {"ALLOW_TF32": asked})
        warehouse.write([make_measurement(number, problem=problem)])
    shown = diode("fastest", "--hardware", "h200").out
    assert "mm tf32 64x64x64 nn" in shown
    assert "mm fp32 64x64x64 nn" in shown
    for dtype, tf32 in (("tf32", True), ("fp32", False)):
        rows = json.loads(diode("fastest", "--hardware", "h200", "--dtype", dtype, "--json").out)
        assert [row["tf32"] for row in rows] == [tf32]


def test_fastest_as_csv(warehouse: Store, diode: RunCommand) -> None:
    """The same columns as CSV."""
    rows = list(csv.DictReader(io.StringIO(diode("fastest", "--hardware", "h200", "--csv").out)))
    assert [(row["op"], row["runtime_us"], row["runner_up"]) for row in rows] == [
        ("bmm", "7.25", ""),
        ("mm", "80.0", "triton::mm_persistent_tma 64x64x64 s3"),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--op", "mm"), ["mm"]),
        (("--m", "65"), ["mm"]),
        (("--m", "8", "--n", "24", "--k", "16"), ["bmm"]),
        (("--b", "3"), ["bmm"]),
        (("--b", "1"), ["mm"]),
        (("--layout", "nt"), ["bmm"]),
        (("--layout", "nn", "--m", "65"), ["mm"]),
        (("--dtype", "bf16"), ["mm"]),
        (("--dtype", "bfloat16"), ["mm"]),
        (("--dtype", "fp16"), ["bmm"]),
        ((), ["bmm", "mm"]),
    ],
)
def test_fastest_of_some_problems(
    warehouse: Store, diode: RunCommand, options: tuple[str, ...], expected: list[str]
) -> None:
    """Each option narrows what is shown."""
    rows = json.loads(diode("fastest", "--hardware", "h200", "--json", *options).out)
    assert [row["op"] for row in rows] == expected


def test_fastest_shows_some_and_counts_all(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Twenty problems unless told otherwise; what is left out is said."""
    warehouse.write([make_measurement(number) for number in range(10, 33)])
    result = diode("fastest", "--hardware", "h200")
    assert len(result.out.splitlines()) == 21
    assert result.err.endswith("20 of 25 problems; --limit 0 shows all\n")
    assert len(diode("fastest", "--hardware", "h200", "--limit", "0").out.splitlines()) == 26
    assert len(diode("fastest", "--hardware", "h200", "--limit", "3").out.splitlines()) == 4


def test_fastest_names_the_vendors_time_of_the_same_problem(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Also where measurements came in another order than problems, as when the first problems are measured again."""
    numbers = range(10, 16)
    warehouse.write([make_measurement(n, timings=(Timing(VENDOR, 10.0 * n), Timing(FAST, 5.0 * n))) for n in numbers])
    again = [replace(make_measurement(n), uid=bytes([100 - n] * 16), is_replay=True) for n in numbers]
    warehouse.write(again)
    late = make_measurement(20, timings=(Timing(VENDOR, 999.0), Timing(FAST, 333.0)))
    warehouse.write([late])
    rows = json.loads(diode("fastest", "--hardware", "h200", "--op", "mm", "--json").out)
    expected = {80.0: 100.0, 333.0: 999.0} | {5.0 * n: 10.0 * n for n in numbers}
    assert {row["runtime_us"]: row["vendor_us"] for row in rows} == expected


def test_fastest_tells_environments_and_devices_apart(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Columns that differ between rows are added."""
    base = make_measurement(1)
    other = replace(base.hardware, name="NVIDIA H200 NVL")
    warehouse.write([replace(base, uid=bytes([5] * 16), environment=Environment(torch="2.13.0"))])
    assert diode("fastest", "--hardware", "h200", "--op", "mm").out.startswith("torch ")
    warehouse.write([replace(base, uid=bytes([6] * 16), hardware=other)])
    assert diode("fastest", "--hardware", "NVIDIA H200 NVL").out.startswith("problem ")
    with write_transaction(warehouse.engine) as connection:
        add_alias(connection, "NVIDIA H200", "hopper")
        connection.exec_driver_sql(
            "INSERT INTO hardware_aliases (alias, hardware_id) SELECT 'hopper', max(id) FROM hardware"
        )
    assert diode("fastest", "--hardware", "hopper").out.startswith("hardware ")


def test_fastest_of_nothing_says_what_there_is(warehouse: Store, diode: RunCommand) -> None:
    """The status is 1 and the message lists what was measured."""
    result = diode("fastest", "--hardware", "h200", "--op", "addmm", "--m", "7")
    assert result.code == 1
    assert result.err.splitlines()[-1] == (
        "error: no timings of addmm, m = 7 on h200; there is: bmm float16 (1 problems), mm bfloat16 (1 problems)"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--op", "mm", "--m", "64"),
            "mm, m = 64 on NVIDIA H200; nearest measured: mm bf16 65x256x128 nn, mm bf16 80x",
        ),
        (
            ("--m", "70", "--b", "1"),
            "b = 1, m = 70 on NVIDIA H200; nearest measured: mm bf16 65x256x128 nn, mm bf16 80",
        ),
        (
            ("--layout", "tt"),
            "layout tt on NVIDIA H200; nearest measured: bmm fp16 3x8x24x16 nt, mm bf16 65x256x128 nn",
        ),
        (
            ("--layout", "nt", "--m", "64"),
            "nearest measured: bmm fp16 3x8x24x16 nt, mm bf16 65x256x128 nn, mm bf16 80x",
        ),
        (("--op", "mm", "--dtype", "tf32"), "mm, tf32 on NVIDIA H200; nearest measured: mm bf16 65x256x128 nn, mm"),
    ],
)
def test_fastest_names_the_nearest_shapes(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement, options: tuple[str, ...], expected: str
) -> None:
    """Of the same op; the dtype counts more than the layout, and that more than the sizes."""
    warehouse.write([make_measurement(16)])
    result = diode("fastest", *options)
    assert result.code == 1
    assert expected in result.err.splitlines()[-1]


def test_fastest_without_hardware(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement, another_database: str
) -> None:
    """The only device that was measured is meant; of several one must be named, and of none nothing is known."""
    assert diode("fastest").out == diode("fastest", "--hardware", "h200").out
    assert diode("fastest").err == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"
    other = replace(make_measurement(1).hardware, name="NVIDIA H100", multiprocessors=114)
    warehouse.write([replace(make_measurement(1), uid=bytes([9] * 16), hardware=other)])
    refused = diode("fastest")
    assert refused.code == 1
    assert refused.err == (
        "error: several devices were measured: NVIDIA H100 (sm_90, 114 multiprocessors), "
        "NVIDIA H200 (sm_90, 132 multiprocessors); name one with --hardware\n"
    )
    empty = diode("fastest", "--database", another_database)
    assert (empty.code, empty.err) == (1, "error: nothing was measured yet; add measurements first\n")


def test_fastest_on_unknown_hardware(warehouse: Store, diode: RunCommand) -> None:
    """A name that matches nothing lists the devices there are."""
    result = diode("fastest", "--hardware", "abacus")
    assert result.code == 1
    assert result.err == ("error: no hardware matches 'abacus'; there is: NVIDIA H200 (sm_90, 132 multiprocessors)\n")


def test_fastest_on_unlike_devices(warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement) -> None:
    """A name that means several is refused unless asked for."""
    base = make_measurement(1)
    smaller = replace(base.hardware, name="NVIDIA H200 MIG", multiprocessors=60)
    bigger = replace(base.hardware, name="NVIDIA H200 NVL")
    warehouse.write([replace(base, uid=bytes([7] * 16), hardware=hardware) for hardware in (smaller,)])
    warehouse.write([replace(base, uid=bytes([8] * 16), hardware=bigger)])
    refused = diode("fastest", "--hardware", "nvidia")
    assert refused.code == 1
    assert "pass --all-matches" in refused.err
    assert diode("fastest", "--hardware", "nvidia", "--all-matches", "--op", "mm").out.count("\n") == 4


def test_wide_tables_stop_after_many_rows() -> None:
    """Two hundred rows are shown, all are counted."""
    console = Console(file=io.StringIO(), width=80)
    wide_table.print_wide(["n"], ([number] for number in range(1234)), console)
    text: Any = console.file
    lines = text.getvalue().splitlines()
    assert "1,234 rows, the first 200 shown; --csv prints all" in text.getvalue()
    assert sum(line.startswith("│") for line in lines) == 200


def test_wide_tables_shorten_long_texts() -> None:
    """A long text is cut and shows that it was."""
    console = Console(file=io.StringIO(), width=80)
    wide_table.print_wide(["text"], [["x" * 100]], console)
    text: Any = console.file
    assert f"│ {'x' * 31}… │" in text.getvalue()
