"""`diode fastest` from the command line."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kernels_to_ask import FAST, VENDOR

import samples
from diode_store.commands import fastest
from diode_store.errors import FIRST_STEP
from diode_store.records import Environment, Problem, TensorSpec, Timing, TimingMethod
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.hardware import add_alias
from samples import matmul

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store


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
        "dimensions": None,
        "tf32": False,
        "kernel": "triton::mm 128x64x32 s4 w8 g8",
        "runtime_us": 80.0,
        "vendor_us": 100.0,
        "speedup": 1.25,
        "runner_up": "triton::mm_persistent_tma 64x64x64 s3",
        "runner_up_us": 82.5,
        "ties": 1,
        "repeats": 1,
        "regime": None,
        "problem": "mm bf16 65x256x128 nn",
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


def test_fastest_answers_in_the_regime_nearest_to_deployment(
    warehouse: Store, diode: RunCommand, make_measurement: MakeMeasurement
) -> None:
    """Of a problem timed in several ways there is one row, which says the way, with the vendor's time in it."""
    for number, regime, times in (
        (11, "write_flush", (30.0, 20.0)),
        (12, "graph", (25.0, 24.0)),
        (13, None, (10.0, 9.0)),
    ):
        timings = (Timing(VENDOR, times[0]), Timing(FAST, times[1]))
        method = TimingMethod("median", regime=regime)
        problem = matmul(512, 512, 512)
        warehouse.write([make_measurement(number, timings=timings, timing_method=method, problem=problem)])
    [row] = json.loads(diode("fastest", "--hardware", "h200", "--m", "512", "--json").out)
    assert (row["regime"], row["runtime_us"], row["vendor_us"]) == ("graph", 24.0, 25.0)
    header = diode("fastest", "--hardware", "h200").out.splitlines()[0]
    assert header.split()[:2] == ["regime", "problem"]


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


@pytest.mark.quick(2)
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


@pytest.mark.quick(2)
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
            ("--layout", "tt", "--b", "3"),
            "b = 3, layout tt on NVIDIA H200; nearest measured: bmm fp16 3x8x24x16 nt, mm bf16 65x256x128 nn",
        ),
        (
            ("--layout", "nt", "--m", "64"),
            "nearest measured: bmm fp16 3x8x24x16 nt, mm bf16 65x256x128 nn, mm bf16 80x",
        ),
        (
            ("--op", "mm", "--dtype", "tf32", "--m", "65"),
            "mm, tf32, m = 65 on NVIDIA H200; nearest measured: mm bf16 65x256x128 nn, mm",
        ),
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


@pytest.mark.parametrize("options", [("--layout", "tt"), ("--op", "mm", "--dtype", "tf32"), ("--dtype", "float64")])
def test_fastest_without_a_size_says_what_there_is(
    warehouse: Store, diode: RunCommand, options: tuple[str, ...]
) -> None:
    """No shape is nearer than another."""
    result = diode("fastest", *options)
    assert result.code == 1
    assert result.err.endswith("on NVIDIA H200; there is: bmm float16 (1 problems), mm bfloat16 (1 problems)\n")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--layout", "xx"), "--layout 'xx': give two letters, of A and B, each n (row-major), t (transposed) or s"),
        (("--layout", "n"), "--layout 'n': give two letters"),
        (("--layout", " "), "'--layout': it is empty"),
        (
            ("--layout", "nn", "--dtype", "nope"),
            "--dtype 'nope': no such dtype; use one of bf16, fp16, fp32, fp64, e4m3, e5m2, tf32",
        ),
        (("--dtype", ""), "'--dtype': it is empty"),
    ],
)
def test_fastest_refuses_what_no_problem_has(
    warehouse: Store, diode: RunCommand, options: tuple[str, ...], expected: str
) -> None:
    """A layout or dtype that does not exist is bad usage, and the message lists those that do."""
    result = diode("fastest", *options)
    assert result.code == 2
    assert expected in " ".join(result.err.replace("│", " ").split())


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
    assert (empty.code, empty.err) == (
        1,
        f"error: the warehouse holds no measurements; {FIRST_STEP}\n",
    )


def test_fastest_on_unknown_hardware(warehouse: Store, diode: RunCommand) -> None:
    """A name that matches nothing lists the devices there are."""
    result = diode("fastest", "--hardware", "abacus")
    assert result.code == 1
    assert result.err == (
        "error: --hardware: no hardware matches 'abacus'; there is: NVIDIA H200 (sm_90, 132 multiprocessors);"
        " to add a GPU, run"
        " `diode tune` on it, or `diode-collect` for its timings alone\n"
    )


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


def test_a_cover(database_url: str, store: Store, diode: RunCommand) -> None:
    """The first kernel loses least over all problems; the second serves what the first does not."""
    kernels = [samples.triton_config(block) for block in (16, 32, 64)]
    times = [{0: 10.0, 1: 12.0, 2: 30.0}, {0: 30.0, 1: 12.0, 2: 10.0}, {1: 10.0, 2: 40.0}, {0: 50.0, 2: 10.0}]
    store.write(
        samples.measurement(number, timings=samples.timings_of({kernels[k]: us for k, us in found.items()}))
        for number, found in enumerate(times)
    )
    asked = ("fastest", "--hardware", "h200", "--database", database_url, "--json", "--cover")
    rows = json.loads(diode(*asked, "3").out)
    assert [(row["kernel"].split()[1].split("x")[0], row["serves"]) for row in rows] == [
        ("32", 3),
        ("64", 2),
        ("16", 1),
    ]
    # Not timed for the last problem, so the first kernel counts as its slowest one there.
    assert rows[0]["regret"] == pytest.approx((1.2 * 1.2 * 1.0 * 5.0) ** (1 / 4))
    assert rows[1]["regret"] == pytest.approx(1.2 ** (1 / 4))
    assert [row["within_5pct"] for row in rows] == [0.25, 0.75, 1.0]
    assert json.loads(diode(*asked, "1").out) == rows[:1]
    assert diode(*asked, "0").code == 2
    assert "no timings of 'bmm'" in diode(*asked, "1", "--op", "bmm").err
