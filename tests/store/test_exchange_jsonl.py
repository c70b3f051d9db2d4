"""JSON Lines: what a good line becomes, what is said of a bad one, and that nothing is lost on the way out."""

from __future__ import annotations

import gzip
import io
import json
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from diode_store.errors import ImportFileError
from diode_store.exchange import jsonl
from diode_store.exchange.context import NO_HARDWARE, BadLine, ImportContext
from diode_store.exchange.files import open_binary
from diode_store.exchange.options import environment_file, hardware_file, time_of
from diode_store.normalise import kernel_config
from diode_store.records import (
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)
from samples import EVERY_FIELD, H200

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement

CONTEXT = ImportContext(hardware=H200)

TRITON_KWARGS = {
    "ACC_TYPE": "tl.float32",
    "ALLOW_TF32": False,
    "BLOCK_K": 32,
    "BLOCK_M": 64,
    "BLOCK_N": 16,
    "EVEN_K": True,
    "GROUP_M": 8,
    "USE_FAST_ACCUM": False,
    "num_stages": 3,
    "num_warps": 4,
}
ROW: dict[str, Any] = {
    "op": "mm",
    "dtype": "bf16",
    "B": 1,
    "M": 64,
    "N": 32,
    "K": 16,
    "layout": "nt",
    "inputs": [
        {"dtype": "bfloat16", "size": [64, 16], "stride": [16, 1]},
        {"dtype": "bfloat16", "size": [16, 32], "stride": [1, 16]},
    ],
    "choices": [
        {"template": "mm", "kwargs": {}, "runtime_us": 10.5},
        {"template": "triton_mm", "kwargs": TRITON_KWARGS, "runtime_us": 31.75},
        {"template": "triton_mm", "kwargs": {**TRITON_KWARGS, "num_warps": 8}, "runtime_us": None},
    ],
}


def row_with(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` with fields replaced."""
    return {**deepcopy(ROW), **changes}


def without(name: str) -> dict[str, Any]:
    """Return ``ROW`` without a field."""
    return {key: value for key, value in ROW.items() if key != name}


def with_choice(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` whose first choice has fields replaced."""
    first, *rest = deepcopy(ROW["choices"])
    return row_with(choices=[{**first, **changes}, *rest])


def with_input(**changes: Any) -> dict[str, Any]:
    """Return ``ROW`` whose first input has fields replaced."""
    first, second = deepcopy(ROW["inputs"])
    return row_with(inputs=[{**first, **changes}, second])


def read_rows(*rows: dict[str, Any], context: ImportContext = CONTEXT) -> list[Measurement | BadLine]:
    """Read rows as the lines of a file."""
    return list(jsonl.read([json.dumps(row).encode() + b"\n" for row in rows], context))


def good(row: dict[str, Any], context: ImportContext = CONTEXT) -> Measurement:
    """Read one row that must be good."""
    [measurement] = read_rows(row, context=context)
    assert isinstance(measurement, Measurement), measurement
    return measurement


def reason(line: bytes | dict[str, Any]) -> str:
    """Read one line that must be bad and return what is said of it."""
    [bad] = jsonl.read([line if isinstance(line, bytes) else json.dumps(line).encode()], CONTEXT)
    assert isinstance(bad, BadLine), bad
    assert bad.line == 1
    assert "\n" not in bad.reason
    return bad.reason


def test_a_line_becomes_a_measurement() -> None:
    """Every field of a line arrives, names normalised, null as a failure, three times the best as an estimate."""
    measurement = good(ROW)
    assert measurement.hardware == H200
    assert measurement.environment == Environment()
    assert measurement.measured_at is None
    assert measurement.source is Source.IMPORT
    assert measurement.timing_method == TimingMethod("median", flush_l2=True, launch_hidden=True)
    assert measurement.problem == Problem.create(
        "mm", (TensorSpec("bfloat16", (64, 16), (16, 1)), TensorSpec("bfloat16", (16, 32), (1, 16)))
    )
    slow = KernelConfig(
        "triton::mm", 64, 16, 32, 8, 3, 4, allow_tf32=False, use_fast_accum=False, acc_type="tl.float32"
    )
    assert measurement.timings == (
        Timing(KernelConfig("aten::mm"), 10.5),
        Timing(slow, 31.75, Outcome.OK, is_estimate=True),
        Timing(replace(slow, num_warps=8), None, Outcome.FAILED_UNSPECIFIED),
    )


def test_three_times_the_best_is_no_estimate_yet() -> None:
    """The boundary itself is a median; only what is slower was given up."""
    choices = [{"template": "mm", "kwargs": {}, "runtime_us": us} for us in (10, 30, 30.001)]
    for position, choice in enumerate(choices):
        choice["template"] = ("mm", "bias_addmm", "addmm")[position]
    timings = good(row_with(choices=choices)).timings
    assert [timing.is_estimate for timing in timings] == [False, False, True]


def test_context_fills_in_what_the_line_leaves_out() -> None:
    """Hardware, environment, time, data set and the rest come from the context."""
    context = ImportContext(
        hardware=H200,
        environment=Environment(torch="2.11.0"),
        measured_at=datetime(2026, 11, 20, tzinfo=UTC),
        dataset="sampled",
        licence="Apache-2.0",
        search_space="EXHAUSTIVE",
        timing_method=TimingMethod(statistic="mean"),
    )
    measurement = good(ROW, context)
    assert measurement.environment.torch == "2.11.0"
    assert measurement.measured_at == datetime(2026, 11, 20, tzinfo=UTC)
    assert (measurement.dataset, measurement.licence) == ("sampled", "Apache-2.0")
    assert measurement.search_space == "EXHAUSTIVE"
    assert measurement.timing_method == TimingMethod(statistic="mean")


def test_what_a_line_says_wins_over_the_context() -> None:
    """A line that names its hardware and time keeps them, and null means that nobody knows."""
    other = {"vendor": "nvidia", "name": "NVIDIA H100", "arch": "sm_90", "multiprocessors": 114, "l2_bytes": 52428800}
    row = row_with(hardware=other, measured_at="2026-01-02T03:04:05+01:00", dataset=None, host="gpu-7")
    measurement = good(row, replace(CONTEXT, dataset="sampled", measured_at=datetime(2020, 1, 1, tzinfo=UTC)))
    assert measurement.hardware == Hardware("nvidia", "NVIDIA H100", "sm_90", 114, l2_bytes=52428800)
    assert measurement.measured_at == datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)
    assert measurement.dataset is None
    assert measurement.host == "gpu-7"


def test_hardware_may_be_the_name_of_a_known_device() -> None:
    """A name stands for the device in our table, with all its attributes."""
    hardware = good(row_with(hardware="h200"), ImportContext()).hardware
    assert (hardware.name, hardware.multiprocessors, hardware.l2_bytes) == ("NVIDIA H200", 132, 60 * 2**20)


def test_unknown_fields_of_a_line_are_kept() -> None:
    """What a newer writer adds goes to ``extra``."""
    assert good(row_with(power_cap_w=700)).extra == {"power_cap_w": 700}


def test_same_line_and_context_give_the_same_uid() -> None:
    """A uid is a hash of what was said, not of how it was written."""
    spaced = json.dumps(ROW, indent=None, separators=(" , ", " : "), sort_keys=True).replace("10.5", "10.50")
    [again] = jsonl.read([spaced.encode()], CONTEXT)
    assert isinstance(again, Measurement)
    assert again.uid == good(ROW).uid
    assert good(with_choice(runtime_us=39)).uid == good(with_choice(runtime_us=39.0)).uid


@pytest.mark.parametrize(
    "context",
    [
        replace(CONTEXT, hardware=replace(H200, multiprocessors=114)),
        replace(CONTEXT, environment=Environment(torch="2.12.0")),
        replace(CONTEXT, measured_at=datetime(2026, 11, 20, tzinfo=UTC)),
        replace(CONTEXT, dataset="other"),
    ],
    ids=["hardware", "environment", "measured_at", "dataset"],
)
def test_another_context_gives_another_uid(context: ImportContext) -> None:
    """The same numbers from elsewhere are another measurement."""
    assert good(ROW, context).uid != good(ROW).uid


def test_another_time_gives_another_uid() -> None:
    """Two runs of one problem are two measurements."""
    assert good(with_choice(runtime_us=10.25)).uid != good(ROW).uid


def test_uid_is_pinned() -> None:
    """Importing with a newer version must find what an older one stored."""
    assert good(ROW).uid.hex() == "cf8948328248d4a0f4ef497030575771"


def test_bmm_of_plain_matrices_is_an_mm() -> None:
    """Inductor lowers a batch of one to mm; the line's layout and sizes still agree."""
    assert good(row_with(op="bmm")).problem.key == good(ROW).problem.key


def test_padded_dimensions_are_accepted_and_remembered() -> None:
    """Inductor pads N = 31 to 32 and times that; what was asked for stays readable."""
    measurement = good(row_with(N=31))
    assert measurement.problem.shape.n == 32
    assert measurement.extra == {"unpadded": {"N": 31}}


def test_either_layout_letter_fits_a_vector() -> None:
    """A matrix with one column is row-major and transposed at once."""
    vector = row_with(
        K=1,
        layout="tn",
        inputs=[
            {"dtype": "bfloat16", "size": [64, 1], "stride": [1, 1]},
            {"dtype": "bfloat16", "size": [1, 32], "stride": [32, 1]},
        ],
    )
    assert good(vector).problem.shape.k == 1


def test_blank_lines_and_a_byte_order_mark_are_skipped() -> None:
    """Neither is a bad line, and line numbers still count the blanks."""
    lines = [b"\xef\xbb\xbf" + json.dumps(ROW).encode(), b"\n", b"  \r\n", b"{"]
    first, bad = jsonl.read(lines, CONTEXT)
    assert isinstance(first, Measurement)
    assert isinstance(bad, BadLine)
    assert bad.line == 4


def test_good_lines_beside_bad_ones_are_kept() -> None:
    """A bad line costs nothing but itself."""
    read = read_rows(ROW, row_with(op="conv"), with_choice(runtime_us=7))
    assert [isinstance(item, Measurement) for item in read] == [True, False, True]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"op": "mm"', "malformed JSON at column 12: Expecting ',' delimiter; mend or remove the line"),
        (b"\xff\xfe", "not JSON text"),
        (b"[" * 100_000, "not JSON text"),
        (b"[1]", "a line must be a JSON object, not a list"),
        (b"3", "a line must be a JSON object, not a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON text"),
    ],
    ids=["cut off", "binary", "deep", "list", "number", "long number"],
)
def test_a_line_that_is_no_object(line: bytes, expected: str) -> None:
    """What is not a JSON object is said to be what it is."""
    assert reason(line).startswith(expected)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_times_without_a_finite_value(text: str) -> None:
    """Python's JSON reads them; we do not."""
    line = json.dumps(ROW).replace("10.5", text).encode()
    assert reason(line).startswith(text)
    assert "finite and positive, or null for a failure" in reason(line)


@pytest.mark.parametrize("value", [0, -3.5])
def test_times_that_are_not_positive(value: float) -> None:
    """A time of nothing, or less, is a mistake of whoever measured."""
    assert reason(with_choice(runtime_us=value)).startswith("choices[0].runtime_us must be")


@pytest.mark.parametrize("name", ["op", "dtype", "B", "M", "N", "K", "layout", "inputs", "choices"])
def test_missing_fields(name: str) -> None:
    """Each field of a problem is needed, and named when it is not there."""
    assert reason(without(name)) == f"no {name}; add what is missing or remove the line"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (row_with(op="conv"), "unknown op 'conv'; known ops: addmm,"),
        (row_with(op=["mm"]), "op must be text, not a list"),
        (row_with(dtype="fp16"), "dtype 'fp16' contradicts the inputs, which are bfloat16"),
        (row_with(dtype=16), "dtype must be text, not a number"),
        (row_with(M=65), "M = 65 contradicts the inputs, which make it 64"),
        (row_with(N=24), "N = 24 contradicts the inputs, which make it 32"),
        (row_with(K="16"), "K = '16' contradicts the inputs, which make it 16"),
        (row_with(B=2), "B = 2 contradicts the inputs, which make it 1"),
        (row_with(M=True), "M = True contradicts the inputs"),
        (row_with(layout="nn"), "layout 'nn' contradicts the inputs' strides, which make it 'nt'"),
        (row_with(layout="n"), "layout 'n' contradicts"),
        (row_with(layout=None), "layout must be two letters, not null"),
        (row_with(inputs={}), "inputs must be a list, not an object"),
        (row_with(inputs=[[1]]), "inputs[0] must be an object, not a list"),
        (row_with(inputs=ROW["inputs"][:1]), "mm needs at least 2 inputs, not 1"),
        (with_input(size="64"), "inputs[0].size must be a list of whole numbers, not text"),
        (with_input(size=[64, 16.5]), "inputs[0].size must be a list of whole numbers, not [64, 16.5]"),
        (with_input(size=[64, -16]), "inputs[0].size must be a list of whole numbers, not [64, -16]"),
        (with_input(size=[64, 2**70]), "inputs[0].size must be a list of whole numbers"),
        (with_input(stride=[16]), "mm: an input has 2 sizes but 1 strides"),
        (with_input(size=[64, 17]), "mm: [64, 17] x [16, 32] is not a matrix product"),
        (with_input(dtype=None), "inputs[0].dtype must be text such as bfloat16, not null"),
        (row_with(choices={}), "choices must be a list, not an object"),
        (row_with(choices=[]), "choices is empty"),
        (row_with(choices=[7]), "choices[0] must be an object, not a number"),
        (row_with(choices=[{"template": "mm"}]), "no choices[0].runtime_us"),
        (row_with(choices=[{"runtime_us": 1}]), "no choices[0].template"),
        (with_choice(runtime_us="10"), "choices[0].runtime_us must be a number of microseconds, not text"),
        (with_choice(runtime_us=True), "choices[0].runtime_us must be a number of microseconds, not true/false"),
        (with_choice(runtime_ms=1), "choices[0] has unknown fields: runtime_ms; remove them"),
        (with_choice(template="warp_drive"), "choices[0]: unknown template 'warp_drive'"),
        (with_choice(template=7), "choices[0].template must be a template's name, not a number"),
        (with_choice(kwargs=[1]), "choices[0].kwargs must be an object, not a list"),
        (with_choice(kwargs={"BLOCK_M": "64"}), "choices[0]: BLOCK_M must be a whole number, not '64'"),
        (with_choice(kwargs={"BLOCK_M": True}), "choices[0]: BLOCK_M must be a whole number, not True"),
        (with_choice(kwargs={"ALLOW_TF32": 1}), "choices[0]: ALLOW_TF32 must be true or false, not 1"),
        (with_choice(kwargs={"WHAT": [1]}), "choices[0]: WHAT must be a number, a string or true/false, not list"),
        (with_choice(outcome="timeout"), "timing 0: outcome timeout does not go with runtime 10.5"),
        (with_choice(outcome="exploded"), "timing 0: outcome must be one of ok, "),
        (with_choice(is_estimate=1), "timing 0: is_estimate must be true or false, not 1"),
        (with_choice(repeats=0), "timing 0: repeats must be"),
        (with_choice(template="triton_mm", kwargs=TRITON_KWARGS), "a measurement must time each config once"),
        (
            row_with(hardware="abacus"),
            "unknown hardware 'abacus'; describe it (vendor, name, arch, multiprocessors) as an object in the row",
        ),
        (row_with(hardware="a100"), "'a100' could be any of: "),
        (row_with(hardware={"name": "x"}), "hardware has no vendor"),
        (row_with(environment={"torch": 2}), "environment.torch must be text, not 2"),
        (row_with(measured_at="yesterday"), "measured_at must be an ISO 8601 time, not 'yesterday'"),
        (row_with(measured_at="2026-11-20"), "measured_at must name its time zone, as in 2026-11-20Z for UTC"),
        (row_with(measured_at=7), "measured_at must be an ISO 8601 time, not a number"),
        (row_with(uid="xyz"), "uid must be 32 hexadecimal digits, not 'xyz'"),
        (row_with(uid="ab"), "uid must be 32 hexadecimal digits, not 'ab'"),
        (row_with(uid=None), "uid must be 32 hexadecimal digits, not null"),
        (row_with(superseded_by="no"), "superseded_by must be 32 hexadecimal digits"),
        (row_with(source="hearsay"), "source must be one of feedback, "),
        (row_with(scalars=[1]), "scalars must be an object, not a list"),
        (row_with(v=2), "record version 2 is newer than 1"),
    ],
)
def test_fields_that_are_wrong(row: dict[str, Any], expected: str) -> None:
    """Each mistake is named with its place."""
    assert reason(row).startswith(expected)


def test_a_bool_does_not_pass_for_a_number_seen_before() -> None:
    """1 and true are equal as dictionary keys; a config cached for one must not be returned for the other."""
    fine = with_choice(template="triton_mm", kwargs={**TRITON_KWARGS, "NUM_SMS": 1})
    flagged = with_choice(template="triton_mm", kwargs={**TRITON_KWARGS, "NUM_SMS": True})
    assert good(fine).timings[0].config.key != good(flagged).timings[0].config.key


def test_hardware_that_nobody_names() -> None:
    """Without a context the line is bad, and the option that helps is named."""
    [bad] = read_rows(ROW, context=ImportContext())
    assert bad == BadLine(1, NO_HARDWARE)
    assert "--hardware" in NO_HARDWARE
    assert bad.at("runs.jsonl") == f"runs.jsonl:1: {NO_HARDWARE}"


def test_a_stream_that_breaks_off() -> None:
    """What was whole before the break is kept; the break is a bad line."""
    packed = gzip.compress(b"".join(json.dumps(with_choice(runtime_us=i)).encode() + b"\n" for i in range(1, 300)))
    with gzip.open(io.BytesIO(packed[: len(packed) // 2])) as stream:
        *kept, last = jsonl.read(stream, CONTEXT)
    assert kept
    assert all(isinstance(item, Measurement) for item in kept)
    assert isinstance(last, BadLine)
    assert last.line == len(kept) + 1
    assert last.reason.startswith("the file breaks off here")


def test_everything_survives_the_way_out_and_in(make_measurement: MakeMeasurement) -> None:
    """A measurement with every field set is the same after ``row_of`` and ``read``, whatever the context says."""
    config = kernel_config("triton_mm_persistent_tma", {**TRITON_KWARGS, "NUM_SMS": 132}, extra={"note": "x"})
    measurement = make_measurement(
        7,
        problem=Problem.create(
            "addmm",
            (
                TensorSpec("float16", (32,), (1,)),
                TensorSpec("float16", (64, 16), (16, 1)),
                TensorSpec("float16", (16, 32), (32, 1)),
            ),
            {"alpha": 0.5},
            {"seen_in": "bert"},
        ),
        timings=(
            Timing(config, 10.25, repeats=40, p10_us=10.0, p90_us=11.5),
            Timing(KernelConfig("aten::addmm"), 99.5, is_estimate=False),
            Timing(KernelConfig("aten::bias_addmm"), 12.5, is_estimate=True),
            Timing(KernelConfig("triton::mm", 16), None, Outcome.COMPILE_ERROR),
        ),
        **{**EVERY_FIELD, "timing_method": TimingMethod("min", flush_l2=False)},
    )
    line = json.dumps(jsonl.row_of(measurement)).encode()
    assert list(jsonl.read([line], ImportContext(hardware=replace(H200, name="other"), dataset="other"))) == [
        measurement
    ]


def test_what_a_measurement_does_not_say_is_not_filled_in(make_measurement: MakeMeasurement) -> None:
    """An exported line keeps its unknowns even if the importer's context knows better."""
    bare = make_measurement(environment=Environment(), measured_at=None, timing_method=TimingMethod())
    context = replace(CONTEXT, environment=Environment(torch="9"), measured_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert list(jsonl.read([json.dumps(jsonl.row_of(bare)).encode()], context)) == [bare]


def test_write_counts_what_it_writes(make_measurement: MakeMeasurement) -> None:
    """``write`` gives one line a measurement and tells how many there were."""
    stream = io.BytesIO()
    assert jsonl.write(stream, [make_measurement(1), make_measurement(2)]) == (2, 6)
    assert [item.uid[-1] for item in jsonl.read(io.BytesIO(stream.getvalue()), CONTEXT)] == [1, 2]  # type: ignore[union-attr]  # all are good


def test_real_lines(jsonl_path: Path) -> None:
    """Six measured problems read without a complaint; their nulls and slow choices are told apart."""
    with open_binary(str(jsonl_path)) as stream:
        read = list(jsonl.read(stream, CONTEXT))
    assert [item for item in read if isinstance(item, BadLine)] == []
    timings = [timing for item in read if isinstance(item, Measurement) for timing in item.timings]
    assert (len(read), len(timings)) == (6, 79)
    assert sum(timing.outcome is Outcome.FAILED_UNSPECIFIED for timing in timings) == 10
    assert sum(timing.is_estimate for timing in timings) == 22


def test_files_are_opened_by_what_they_hold(tmp_path: Path) -> None:
    """Gzip is told by its first bytes, whatever the name."""
    (tmp_path / "packed").write_bytes(gzip.compress(b"x\n"))
    (tmp_path / "plain.gz").write_bytes(b"y\n")
    (tmp_path / "empty").write_bytes(b"")
    found = []
    for name in ("packed", "plain.gz", "empty"):
        with open_binary(str(tmp_path / name)) as stream:
            found.append(stream.read())
    assert found == [b"x\n", b"y\n", b""]


@pytest.mark.parametrize("name", ["missing.jsonl", "", "folder"])
def test_files_that_cannot_be_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's name and the system's reason make one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ImportFileError, match=f"^{name}: .*; check the file's name$"), open_binary(name):
        pass


def test_hardware_file(tmp_path: Path) -> None:
    """A device nobody knows is described by a JSON object."""
    path = tmp_path / "hardware.json"
    path.write_text('{"vendor": "acme", "name": "Anvil 9", "arch": "av9", "multiprocessors": 12, "l2_bytes": 1024}')
    assert hardware_file(path) == Hardware("acme", "Anvil 9", "av9", 12, l2_bytes=1024)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"vendor": "acme"}', "no name, arch, multiprocessors"),
        ('{"vendor": "a", "name": "b", "arch": "c", "multiprocessors": 0}', "multiprocessors must be a positive"),
        ('{"vendor": "a", "name": "", "arch": "c", "multiprocessors": 1}', "name must be text"),
        ('{"vendor": "a", "name": "b", "arch": "c", "multiprocessors": 1, "sms": 3}', "unknown fields sms"),
        ("[1]", "must hold a JSON object"),
        ("{", "holds no JSON"),
    ],
)
def test_bad_hardware_files(tmp_path: Path, content: str, expected: str) -> None:
    """Each mistake names the file and what is wrong."""
    path = tmp_path / "hardware.json"
    path.write_text(content)
    with pytest.raises(ImportFileError, match=expected) as raised:
        hardware_file(path)
    assert str(raised.value).startswith(str(path))


def test_environment_file(tmp_path: Path) -> None:
    """What the file does not name stays unknown."""
    path = tmp_path / "environment.json"
    path.write_text('{"torch": "2.11.0", "template_hashes": {"triton::mm": "abc"}}')
    assert environment_file(path) == Environment(torch="2.11.0", template_hashes={"triton::mm": "abc"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"torch": 2}', "torch must be text"),
        ('{"template_hashes": [1]}', "template_hashes must be an object"),
        ('{"cuda": "13"}', "unknown fields cuda; known: torch, triton, compute, driver, python, os, template_hashes"),
    ],
)
def test_bad_environment_files(tmp_path: Path, content: str, expected: str) -> None:
    """Each mistake names the file and what is wrong."""
    path = tmp_path / "environment.json"
    path.write_text(content)
    with pytest.raises(ImportFileError, match=expected):
        environment_file(path)


def test_option_files_that_are_missing(tmp_path: Path) -> None:
    """A name that was mistyped is said to be that."""
    with pytest.raises(ImportFileError, match=r"nowhere\.json: No such file or directory; check the file's name"):
        environment_file(tmp_path / "nowhere.json")


def test_times_on_the_command_line() -> None:
    """A date means midnight UTC; a zone is heeded; anything else is refused."""
    assert time_of("2026-11-20") == datetime(2026, 11, 20, tzinfo=UTC)
    assert time_of("2026-11-20T12:30:00+01:00") == datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
    with pytest.raises(ImportFileError, match="'soon' is no time"):
        time_of("soon")
