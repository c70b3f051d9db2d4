"""T4 result files: our own come back as they were, and those that Kernel Tuner writes are understood."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from round_trip import EVERYTHING, everything
from stored import content

from diode_store.candidates.names import kernel_config
from diode_store.records import Outcome, Timing, TimingMethod

if TYPE_CHECKING:
    from pathlib import Path

    from round_trip import RoundTrip

    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")

PROBLEM = ("--op", "mm", "--m", "4096", "--n", "512", "--k", "256", "--dtype", "fp16")
OPTIONS = ("--hardware", "h200", *PROBLEM)


def result(block_size: int, runtimes: list[float], invalidity: str = "correct", **overrides: Any) -> dict[str, Any]:
    """Return a result as Kernel Tuner writes it."""
    time = sum(runtimes) / len(runtimes) if runtimes else "RuntimeFailedConfig"
    return {
        "timestamp": f"2026-11-20 10:44:{block_size % 60:02}.236642+00:00",
        "configuration": {"block_size_x": block_size, "use_shmem": 1, "layout": "row"},
        "times": {
            "compilation": 661.5,
            "benchmark": 393.9,
            "framework": 53.1,
            "search_algorithm": 0,
            "validation": 0,
            "runtimes": runtimes,
        },
        "invalidity": invalidity,
        "correctness": 1,
        "measurements": [
            {"name": "time", "value": time, "unit": "ms"},
            {"name": "GFLOP/s", "value": 615.7, "unit": ""},
        ],
        "objectives": ["time"],
        **overrides,
    }


def tuned(*results: Any) -> dict[str, Any]:
    """Return a file of Kernel Tuner's."""
    return {"results": list(results), "schema_version": "1.0.0"}


def put(folder: Path, data: Any) -> str:
    """Write a file and return its name."""
    path = folder / "tuned.json"
    path.write_text(json.dumps(data))
    return str(path)


def test_round_trip(store: Store, round_trip: RoundTrip, make_measurement: MakeMeasurement) -> None:
    """Every field of every measurement, and each time to the last bit."""
    store.write(everything(make_measurement))
    round_trip.through("out.json", EVERYTHING, "--format", "t4")


def test_real_data_survive_the_round_trip(diode: RunCommand, jsonl_path: Path, round_trip: RoundTrip) -> None:
    """Compressed too."""
    diode("import", "--hardware", "h200", str(jsonl_path))
    round_trip.through("out.json.gz", "6 measurements with 79 timings", "--format", "t4")


def test_an_exported_file_is_what_the_schema_says(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """The fields that T4 requires, with its names and units."""
    store.write([make_measurement(1)])
    out = tmp_path / "out.json"
    diode("export", "--format", "t4", "-o", str(out))
    data = json.loads(out.read_text())
    assert data.keys() == {"results", "schema_version", "diode"}
    assert data["schema_version"] == "1.0.0"
    by_validity = {(r["invalidity"], r["correctness"]): r for r in data["results"]}
    assert by_validity.keys() == {("correct", 1), ("constraints", 0)}
    fastest = min((r for r in data["results"] if r["measurements"]), key=lambda r: r["measurements"][0]["value"])
    assert fastest["configuration"] == {"template": "aten::mm"}
    assert fastest["measurements"] == [
        {"name": "time", "value": 0.0105, "unit": "ms"},
        {"name": "runtime", "value": 10.5, "unit": "us"},
    ]
    assert (fastest["objectives"], fastest["times"]) == (["time"], {"runtimes": []})
    assert fastest["timestamp"] == "2026-11-20T12:30:00+00:00"


def test_a_file_of_kernel_tuner(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """One measurement of the problem that the options say: the median of the runs in microseconds, and failures."""
    path = put(
        tmp_path,
        tuned(
            result(16, [12.0, 11.0, 14.0]),
            result(32, [], "compile"),
            result(48, [], "runtime"),
            result(64, [], "constraints"),
            result(80, [9.0], correctness=0),
            result(96, [], measurements=[{"name": "time", "value": 0.5, "unit": "s"}]),
        ),
    )
    assert diode("import", path, *OPTIONS).out == "1 measurement with 6 timings added\n"
    (found,) = content(database_url)
    assert (found.problem.shape.m, found.problem.shape.n, found.problem.shape.k) == (4096, 512, 256)
    assert (found.problem.op, found.problem.shape.dtype, found.problem.shape.layout) == ("mm", "float16", "nn")
    assert (found.hardware.name, found.timing_method) == ("NVIDIA H200", TimingMethod("median"))
    assert (found.measured_at and found.measured_at.isoformat()) == "2026-11-20T10:44:04.236642+00:00"
    by_size = {dict(timing.config.kwargs)["block_size_x"]: timing for timing in found.timings}
    config = kernel_config("kernel_tuner::mm", {"block_size_x": 16, "use_shmem": 1, "layout": "row"})
    assert by_size[16] == Timing(config, 12_000.0, repeats=3, p10_us=11_200.0, p90_us=13_600.0)
    assert {size: timing.outcome for size, timing in by_size.items()} == {
        16: Outcome.OK,
        32: Outcome.COMPILE_ERROR,
        48: Outcome.RUNTIME_ERROR,
        64: Outcome.OUT_OF_RESOURCES,
        80: Outcome.WRONG_RESULT,
        96: Outcome.OK,
    }
    assert by_size[96].runtime_us == 500_000.0
    assert diode("import", path, *OPTIONS).out.startswith("nothing new")


def test_triton_kernels_that_were_tuned(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """Parameters by Triton's names under a template of one's own become columns; a bias and a layout are said."""
    configuration = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3, "GROUP_M": 8}
    path = put(tmp_path, tuned(result(1, [1.0], configuration=configuration)))
    options = ("--hardware", "h200", "--op", "addmm", *PROBLEM[2:], "--layout", "nt", "--template", "triton::mm")
    assert diode("import", path, *options).code == 0
    (found,) = content(database_url)
    assert found.timings[0].config == kernel_config("triton::mm", configuration)
    assert (found.problem.op, found.problem.shape.layout) == ("addmm", "nt")
    assert [spec.size for spec in found.problem.inputs] == [(4096, 512), (4096, 256), (256, 512)]


def test_a_configuration_that_was_timed_again(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """Makes another measurement, so that no timing is lost, though both say the same."""
    path = put(tmp_path, tuned(result(16, [1.0]), result(32, [2.0]), result(16, [1.0])))
    assert diode("import", path, *OPTIONS).out == "2 measurements with 3 timings added\n"
    assert sorted(len(found.timings) for found in content(database_url)) == [1, 2]


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        (tuned(result(1, [1.0])), OPTIONS[:2], "T4 does not name its matrix product; give --op, --m, --n, --k"),
        (tuned(result(1, [1.0])), (*OPTIONS[:8], *OPTIONS[10:]), "its matrix product; give --k"),
        (tuned(result(1, [1.0])), PROBLEM, "T4 names no hardware; give --hardware NAME"),
        (tuned(result(1, [1.0])), (*OPTIONS, "--op", "conv"), "unknown op 'conv'; give --op as one of: addmm, "),
        (tuned(result(1, [1.0])), (*OPTIONS, "--layout", "xx"), "unknown layout 'xx'; give --layout as nn, nt, tn"),
        (tuned(result(1, [1.0])), (*OPTIONS, "--dtype", "f12"), "unknown dtype 'f12'"),
        (tuned(result(1, [1.0]), {"configuration": {}}), OPTIONS, "result 2: no times, invalidity, correctness; add"),
        (tuned("x"), OPTIONS, "result 1: it must be an object, not text"),
        (tuned(result(1, [1.0], "tired")), OPTIONS, "result 1: invalidity must be one of correct, compile, "),
        (tuned(result(1, [0.0])), OPTIONS, "result 1: times.runtimes must be positive milliseconds, not [0.0]"),
        (
            tuned(result(1, [], measurements=[])),
            OPTIONS,
            "result 1: no times.runtimes and no measurement called 'time'",
        ),
        (
            tuned(result(1, [], measurements=[{"name": "time", "value": 1, "unit": "h"}])),
            OPTIONS,
            "result 1: time has the unit 'h'; known: s, ms, us",
        ),
        (
            tuned(result(1, [], measurements=[{"name": "time", "value": "slow", "unit": "ms"}])),
            OPTIONS,
            "result 1: time must be a number, not 'slow'",
        ),
        (
            tuned(result(1, [], measurements=[{"name": ["time"], "value": 1, "unit": "ms"}])),
            OPTIONS,
            "result 1: no times.runtimes and no measurement called 'time'",
        ),
        (
            tuned(result(1, [], measurements=[{"name": "time", "value": 1, "unit": ["ms"]}])),
            OPTIONS,
            "result 1: time has the unit ['ms']; known: s, ms, us",
        ),
        (tuned(result(1, [], times=[1])), OPTIONS, "result 1: times must be an object, not a list"),
        (
            tuned(result(1, [1.0], configuration={"BLOCK_M": "big"})),
            OPTIONS,
            "result 1: BLOCK_M must be a whole number",
        ),
        ({"results": 3}, ("--format", "t4", *OPTIONS), "results must be a list, not a number"),
        ({"results": [], "diode": {"version": 9}}, OPTIONS, "diode: version 9 is not 1; upgrade"),
        (
            {"results": [result(1, [1.0])], "diode": {"version": 1, "measurements": []}},
            OPTIONS,
            "result 1: diode.measurement must be a position in diode.measurements",
        ),
    ],
    ids=range(20),
)
def test_what_is_wrong_is_named(
    diode: RunCommand, tmp_path: Path, store: Store, data: Any, options: tuple[str, ...], expected: str
) -> None:
    """By its place, in one line with a remedy; nothing of that measurement is kept."""
    path = put(tmp_path, data)
    found = diode("import", path, *options)
    said = next(line for line in found.err.splitlines() if line.startswith(path))
    assert found.code == 1
    assert expected in said
    assert "; " in said
    assert store.counts()["measurements"] == 0


def test_the_times_of_a_failed_result_do_not_matter(diode: RunCommand, tmp_path: Path, database_url: str) -> None:
    """Whatever they are, the failure is imported; a list once ended the command with a traceback."""
    strange = [result(2, [], "compile", times=[1]), result(3, [], "timeout", times={"runtimes": [0, "x"]})]
    found = diode("import", put(tmp_path, tuned(result(1, [1.0, 3.0]), *strange)), *OPTIONS)
    assert (found.code, found.out) == (0, "1 measurement with 3 timings added\n")
    (measured,) = content(database_url)
    assert {timing.outcome.value for timing in measured.timings} == {"ok", "compile_error", "timeout"}
    assert measured.timing_method.statistic == "median"


def test_a_damaged_measurement_of_ours_costs_itself_alone(
    store: Store, diode: RunCommand, tmp_path: Path, another_database: str, make_measurement: MakeMeasurement
) -> None:
    """The other is kept, and importing the mended file adds what was missing."""
    store.write([make_measurement(1), make_measurement(2)])
    out = tmp_path / "out.json"
    diode("export", "--format", "t4", "-o", str(out))
    good = out.read_text()
    out.write_text(good.replace('"invalidity":"constraints"', '"invalidity":"gloom"', 1))
    found = diode("import", str(out), "--database", another_database)
    assert found.out == "1 measurement with 3 timings added\n"
    out.write_text(good)
    assert diode("import", str(out), "--database", another_database).out.startswith("1 measurement with 3 timings")


def test_a_file_that_is_no_json(diode: RunCommand, tmp_path: Path) -> None:
    """A file that was cut is named as such."""
    path = tmp_path / "cut.json"
    path.write_text('{"results": [{')
    assert f"{path}: it is not JSON (" in diode("import", str(path), *OPTIONS).err
