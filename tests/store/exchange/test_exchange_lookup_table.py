"""`diode export --format inductor-lut`: which kernels get into the table, and what is said of the others.

That Inductor takes such a table is shown in tests/collectors/inductor/test_lookup_table.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from diode_store.candidates.names import kernel_config
from diode_store.errors import ExportError
from diode_store.exchange.foreign.inductor_lut import Ranked, build, torch_version
from diode_store.records import KernelConfig, Outcome, Problem, TensorSpec, TimingMethod
from samples import H100, as_tf32, matmul, measurement, timings_of, triton_config

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from conftest import CommandResult, RunCommand
    from diode_store.records import Timing
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")

VENDOR = kernel_config("mm", {})
A, B, C = (triton_config(block) for block in (32, 64, 128))
KEY = "NVIDIA H200+((torch.bfloat16, [64, 128], [128, 1]), (torch.bfloat16, [128, 256], [256, 1]))+mm"
ENTRY = {
    "template_id": "triton::mm",
    "EVEN_K": True,
    "USE_FAST_ACCUM": False,
    "ACC_TYPE": "tl.float32",
    "hint_override": None,
    "BLOCK_N": 64,
    "BLOCK_K": 32,
    "GROUP_M": 8,
    "num_stages": 3,
    "num_warps": 4,
}
"""Of ``triton_config``, but for BLOCK_M."""


class Tables:
    """Measures what a test says and exports tables."""

    def __init__(self, store: Store, diode: RunCommand, folder: Path) -> None:
        self._store, self._diode = store, diode
        self._out = folder / "table.json"
        self._number = 0

    def measure(self, times: Mapping[KernelConfig, float | Timing | Outcome], **overrides: Any) -> None:
        """Write one measurement: config → microseconds, or how it failed."""
        self._number += 1
        fields = {"problem": matmul(64, 256, 128), "timings": timings_of(times), **overrides}
        self._store.write([measurement(self._number, **fields)])

    def run(self, *options: str) -> CommandResult:
        """Run the export."""
        return self._diode("export", "--format", "inductor-lut", "--force", "-o", str(self._out), *options)

    def table(self, *options: str) -> dict[str, list[dict[str, Any]]]:
        """Return the exported table."""
        found = self.run(*options)
        assert found.code == 0, found.err
        return dict(json.loads(self._out.read_text()))


@pytest.fixture
def tables(store: Store, diode: RunCommand, tmp_path: Path) -> Tables:
    """Return an empty warehouse to measure into."""
    return Tables(store, diode, tmp_path)


def test_the_fastest_kernel_of_a_problem(tables: Tables) -> None:
    """With the parameters that Inductor passes; failures and slower ones are not there."""
    tables.measure({VENDOR: 100.0, A: 80.0, B: 60.0, C: Outcome.RUNTIME_ERROR})
    assert tables.table("--hardware", "h200") == {KEY: [{**ENTRY, "BLOCK_M": 64}]}
    found = tables.run("--hardware", "h200")
    assert found.out.endswith("table.json: 1 problem with 1 entry\n")
    assert found.err == (
        "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"
        "environment: 1, torch 2.11.0+cu130, triton 3.6.0, compute cuda 13.0, driver 580.95, python 3.12.3 "
        "(1 problems)\n"
    )


def test_a_table_is_not_imported(tables: Tables, diode: RunCommand, tmp_path: Path) -> None:
    """It has no times, and one line says so."""
    tables.measure({A: 80.0})
    tables.table()
    path = tmp_path / "table.json"
    said = f"error: {path} is a lookup table of Inductor's, which has no times; import the measurements behind it\n"
    assert diode("import", str(path)) == (1, "", said)


def test_the_vendors_kernel(tables: Tables) -> None:
    """It is an entry like any other, so that nothing is searched for."""
    tables.measure({VENDOR: 50.0, A: 80.0})
    assert tables.table() == {KEY: [{"template_id": "aten::mm"}]}


def test_ties(tables: Tables) -> None:
    """With --top so many of those that cannot be told from the fastest; slower ones never."""
    tables.measure({VENDOR: 100.0, A: 80.2, B: 80.0, C: 120.0})
    assert [entry.get("BLOCK_M") for entry in tables.table("--top", "3")[KEY]] == [64, 32]
    assert len(tables.table("--top", "1")[KEY]) == 1


def test_the_regime_nearest_to_deployment(tables: Tables) -> None:
    """Of a problem timed in several ways the winner is that of the way nearest to how a deployed kernel runs."""
    for regime, times in (("write_flush", {A: 80.0, B: 90.0}), ("read_flush", {A: 75.0, B: 70.0}), (None, {A: 1.0})):
        tables.measure(times, timing_method=TimingMethod("median", regime=regime))
    assert tables.table() == {KEY: [{**ENTRY, "BLOCK_M": 64}]}


def test_devices(tables: Tables) -> None:
    """One is enough to need no name; several need one; the key says which, or none."""
    tables.measure({A: 80.0})
    tables.measure({B: 80.0}, hardware=H100)
    found = tables.run()
    assert found.code == 1
    assert "a lookup table is for one device; it could be any of: NVIDIA H100 80GB HBM3 (sm_90, 132 " in found.err
    (key,) = tables.table("--hardware", "h100")
    assert key == KEY.replace("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    assert list(tables.table("--hardware", "h200", "--device-key", "")) == [KEY.removeprefix("NVIDIA H200+")]
    assert list(tables.table("--hardware", "h200", "--device-key", "gfx")) == [KEY.replace("NVIDIA H200", "gfx")]


def test_amd_devices_need_their_name_there(tables: Tables) -> None:
    """Inductor calls them by their architecture with its features, which nobody records."""
    tables.measure({A: 80.0}, hardware=replace(H100, vendor="amd", name="AMD Instinct MI300X", arch="gfx942"))
    assert "Inductor's name for AMD Instinct MI300X is not recorded; give it with --device-key" in tables.run().err
    assert len(tables.table("--device-key", "gfx942:sramecc+:xnack-")) == 1


def test_environments(tables: Tables) -> None:
    """Several are an error that lists them; one is chosen by its id, and its template hashes go along."""
    tables.measure({A: 80.0})
    newer = replace(measurement().environment, torch="2.13.0", template_hashes={"triton::mm": "d9984"})
    tables.measure({B: 80.0}, environment=newer)
    found = tables.run()
    assert found.code == 1
    assert "name one environment with --environment-id: 1 is torch 2.11.0+cu130, triton 3.6.0, " in found.err
    assert "; 2 is torch 2.13.0, " in found.err
    assert tables.table("--environment-id", "2") == {KEY: [{**ENTRY, "BLOCK_M": 64, "template_hash": "d9984"}]}
    absent = tables.run("--environment-id", "7")
    assert absent.code == 1
    assert "error: nothing was measured on NVIDIA H200 in environment 7; name one environment with --env" in absent.err


def test_another_version_than_was_measured(tables: Tables) -> None:
    """Goes, with a warning; versions that have no such table do not."""
    tables.measure({A: 80.0})
    assert "measured in torch 2.11.0+cu130: the reader refuses kernels" in tables.run("--torch", "2.13").err
    said = tables.run("--torch", "2.9.1")
    assert said.code == 1
    assert said.err.endswith("error: no lookup table is known for torch '2.9.1'; give --torch as one of 2.10 to 2.15\n")
    with pytest.raises(ExportError, match="no lookup table is known for torch 'unknown'"):
        torch_version("unknown")


def test_what_a_table_cannot_hold_is_counted(tables: Tables, tmp_path: Path) -> None:
    """By its reason, also for a script; a table of nothing is not written."""
    tables.measure({kernel_config("decompose_k", {"k_split": 4}): 10.0, A: 90.0})
    found = tables.run()
    reason = "1 problems left out: none of its fastest kernels can be written for this version"
    assert (found.code, reason in found.err) == (1, True)
    assert not (tmp_path / "table.json").exists()
    tables.measure({A: 80.0}, problem=matmul(32, 32, 32))
    report = json.loads(tables.run("--json").out)
    assert report == {"file": str(tmp_path / "table.json"), "problems": 1, "entries": 1, "not_held": [reason]}


def test_tf32(tables: Tables) -> None:
    """A table cannot tell it from full float32, so that one of them is chosen."""
    problem = matmul(64, 256, 128, "float32")
    tables.measure({A: 80.0}, problem=problem)
    tables.measure({B: 20.0}, problem=as_tf32(problem))
    ((plain,), (tf32,)) = (tables.table(*options).values() for options in ((), ("--tf32",)))
    assert (plain[0]["BLOCK_M"], tf32[0]["BLOCK_M"]) == (32, 64)
    assert "1 problems left out: float32 timed with TF32 allowed (--tf32 takes it)" in tables.run().err


def test_one_op(tables: Tables) -> None:
    """The others stay out without a word."""
    tables.measure({A: 80.0})
    bmm = Problem.create(
        "bmm",
        (TensorSpec("bfloat16", (4, 64, 64), (4096, 64, 1)), TensorSpec("bfloat16", (4, 64, 64), (4096, 64, 1))),
    )
    tables.measure({triton_config(32): 80.0}, problem=bmm)
    assert [key.rpartition("+")[2] for key in tables.table("--op", "bmm")] == ["bmm"]
    assert len(tables.table()) == 2
    assert "no 'addmm' was measured on this device" in tables.run("--op", "addmm").err


@pytest.mark.parametrize("options", [("--top", "1"), ("--torch", "2.13"), ("--tf32",), ("--device-key", "")])
def test_options_of_the_table_alone(diode: RunCommand, tmp_path: Path, options: tuple[str, ...]) -> None:
    """With another format they are bad usage."""
    assert diode("export", "-o", str(tmp_path / "x.jsonl"), *options).code == 2


TMA = kernel_config(
    "triton::mm_persistent_tma",
    {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
    | {"A_ROW_MAJOR": True, "B_ROW_MAJOR": True, "NUM_SMS": 132, "TMA_SIZE": 128, "TMA_EXPERIMENTAL_API": False},
)


@pytest.mark.parametrize(
    ("config", "version", "expected"),
    [
        (TMA, (2, 11), "triton::mm_persistent_tma"),
        (replace(TMA, kwargs=()), (2, 11), None),
        (replace(TMA, kwargs=()), (2, 12), "triton::mm_persistent_tma"),
        (replace(TMA, template="triton::blackwell_ws_persistent_device_tma"), (2, 11), None),
        (
            replace(TMA, template="triton::blackwell_ws_persistent_device_tma"),
            (2, 14),
            "triton::blackwell_ws_persistent_device_tma",
        ),
        (
            replace(TMA, template="triton::blackwell_ws_persistent_device_tma"),
            (2, 15),
            "triton::blackwell_ws_persistent_tma",
        ),
        (replace(A, num_warps=None), (2, 13), None),
        (kernel_config("cpp_CppMicroGemmFP32Vec_0", {}), (2, 13), None),
    ],
)
def test_versions_differ(config: KernelConfig, version: tuple[int, int], expected: str | None) -> None:
    """Until 2.11 an entry must be complete; from 2.15 on Blackwell's template has another name."""
    made = build([Ranked(matmul(64, 256, 128), (config,))], version, "D", template_hashes={})
    assert [entry["template_id"] for entries in made.table.values() for entry in entries] == (
        [expected] if expected else []
    )


def test_ops_whose_inputs_are_looked_up_otherwise() -> None:
    """scaled_mm is, and a dtype of the output is no part of a key."""
    fp8 = (TensorSpec("float8_e4m3fn", (64, 128), (128, 1)), TensorSpec("float8_e4m3fn", (128, 256), (1, 128)))
    scaled = Problem.create("scaled_mm", (*fp8, *[TensorSpec("float32", (), ())] * 2), {"out_dtype": "bfloat16"})
    typed, strange = (
        Problem.create("mm", matmul(64, 256, 128).inputs, scalars) for scalars in ({"out_dtype": "float32"}, {"x": 1})
    )
    problems = [Ranked(problem, (A,)) for problem in (scaled, typed, strange)]
    made = build(problems, (2, 13), "D", template_hashes={})
    assert made.lines() == [
        "1 problems left out: Inductor's lookup tables cannot name problems of scaled_mm; `diode lock` can",
        "1 problems left out: a table cannot distinguish dtypes of the output",
        "1 problems left out: a table has no room for some of their scalars",
    ]
