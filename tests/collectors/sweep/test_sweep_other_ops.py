"""Scaled, grouped and int8 products in a sweep: kernels, the values they compute with, and the devices they need."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.kernel import mm_grouped

import samples
from diode_collectors.inductor import indexing
from diode_collectors.inductor.kernel_metrics import metrics_of
from diode_collectors.problems.families import family_problems
from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.devices import SweepDevice, with_kernels
from diode_collectors.sweep.lane import benchmark as benchmark_module
from diode_collectors.sweep.lane.benchmark import Reference, worst_error_of
from diode_collectors.sweep.lane.measuring import Measuring, MeasuringOptions
from diode_collectors.sweep.lane.sampling import SweepChoices
from diode_collectors.sweep.lane.values import clear
from diode_collectors.sweep.plan import DEFAULT_MODE
from diode_store.errors import HardwareError
from diode_store.kernels import KernelConfig
from diode_store.records import Environment, Outcome
from inductor_harness import triton_choices_on_cpu

if TYPE_CHECKING:
    from pathlib import Path

    from diode_collectors.sweep.lane.measuring import Measured

pytestmark = pytest.mark.xdist_group("sweeps")


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Use one thread, as a lane does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measured(folder: Path, text: str, space: str, **patches: Any) -> Measured:
    """Return what comes of one problem on this CPU."""
    told: dict[str, Any] = {
        "device": "cpu", "space": SearchSpace.parse(space), "sweep_id": "s1", "seed": 7, "include_tma": True,
        "mode": DEFAULT_MODE, "lock_folder": folder,
    }  # fmt: skip
    with warnings.catch_warnings(), Measuring(MeasuringOptions(**told)) as opened, inductor_config.patch(patches):
        return opened.measure(parse_problem(text))


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "text",
    [
        "int_mm:32x64x128/nt",
        "scaled_mm:32x64x128/row/fast",
        "mm_plus_mm:64x64x64/nt/fp32",
        "grouped_mm:64x64x64:4/nt/skew1",
        "grouped_mm:64x64x64:4/tn/2d2d",
        "grouped_mm:64x64x64:4/nt/3d3d",
    ],
)
def test_the_vendors_kernel_alone(tmp_path: Path, text: str) -> None:
    """Also where no choices handler sees the op, and where the output is not of floats."""
    problem, result = parse_problem(text), measured(tmp_path, text, "VENDOR")
    assert result.measurement is not None, result.silent
    assert result.measurement.problem.key == problem.problem().key
    assert [(t.config.template, t.outcome) for t in result.measurement.timings] == [
        (problem.entry.vendors[0], Outcome.OK)
    ]
    assert result.measurement.metrics == ()


def test_a_grouped_product_is_sampled_and_keeps_its_skew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list is drawn from before a kernel is generated; kernels that cannot run here have an outcome."""
    monkeypatch.setattr(mm_grouped, "can_use_triton_kernel", lambda *_: True)
    monkeypatch.setattr(mm_grouped, "get_num_sms", lambda *_: 132)
    monkeypatch.setattr(mm_grouped, "get_gpu_shared_memory", lambda *_: 232_448)
    prune = mm_grouped.early_config_prune
    patches = {"max_autotune_gemm_backends": "TRITON,ATEN", "freezing": False}
    text = "grouped_mm:256x128x64:8/nt/bf16/2d3d/skew1"
    with triton_choices_on_cpu():
        result = measured(tmp_path, text, "SAMPLE:3", **patches)
    assert mm_grouped.early_config_prune is prune
    assert result.measurement is not None, result.silent
    assert result.measurement.problem.scalars == (("skew", 1.0),)
    assert result.measurement.problem.key == parse_problem(text).problem().key
    by_template: dict[str, set[Outcome]] = {}
    for timing in result.measurement.timings:
        by_template.setdefault(timing.config.template, set()).add(timing.outcome)
    assert by_template["aten::_grouped_mm"] == {Outcome.OK}
    assert Outcome.OK not in by_template["triton::grouped_mm"]
    assert len(result.measurement.timings) == 4


def test_samples_of_grouped_products_depend_on_the_problem_alone() -> None:
    """DEFAULT and EXHAUSTIVE are Inductor's one list."""
    configs = list(range(40))

    def drawn(space: str, text: str, seed: int = 0) -> list[int]:
        handler = SweepChoices(SearchSpace.parse(space), seed)
        handler.asked = parse_problem(text).problem()
        return handler.grouped(configs)

    one, other = "grouped_mm:64x64x64:4/nt", "grouped_mm:64x64x64:4/nt/skew1"
    assert drawn("DEFAULT", one) == drawn("EXHAUSTIVE", one) == configs
    assert len(set(drawn("SAMPLE:8", one))) == 8
    assert drawn("SAMPLE:8", one) == drawn("SAMPLE:8", one)
    assert drawn("SAMPLE:8", one) != drawn("SAMPLE:8", other)
    assert drawn("SAMPLE:8", one) != drawn("SAMPLE:8", one, seed=1)
    assert sorted(drawn("SAMPLE:80", one)) == configs


def test_kernels_that_broke_the_device_are_not_offered_again() -> None:
    """Nor is a lone vendor kernel benchmarked twice where templates were asked for."""
    choices = [
        SimpleNamespace(annotations={}, name=name, info_dict=lambda: {"backend": "extern"}) for name in ("mm", "bmm")
    ]
    handler = SweepChoices(SearchSpace(), 0)
    handler.excluded = {KernelConfig("aten::bmm")}
    assert handler.offered(choices) == choices[:1]
    assert SweepChoices(SearchSpace("VENDOR"), 0).offered(choices[:1]) == choices[:1] * 2


@pytest.mark.parametrize(
    ("scaling", "looks_at_b", "is_beyond"),
    [("1x128+128x128", False, True), ("1x128+128x128", True, False), ("1x128", False, False), ("row", False, False)],
)
def test_templates_that_read_beyond_the_scales(
    scaling: str,
    looks_at_b: bool,  # noqa: FBT001 - a parameter of pytest's
    is_beyond: bool,  # noqa: FBT001 - as above
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading B's scales by A's recipe does no harm where both have one recipe."""
    monkeypatch.setattr(indexing, "_looks_at_recipe_of_b", lambda: looks_at_b)
    shape = parse_problem(f"scaled_mm:256x512x512/{scaling}").shape
    template = SimpleNamespace(uid="triton::scaled_mm_device_tma_main_loop_scaling")
    assert indexing.reads_beyond_scales(template, shape) is is_beyond
    assert not indexing.reads_beyond_scales(SimpleNamespace(uid="triton::mm"), shape)


def test_the_template_of_this_torch_is_looked_at() -> None:
    """Torch 2.13 reads each operand's scales by its own recipe."""
    shape = parse_problem("scaled_mm:256x512x512/1x128+128x128").shape
    template = SimpleNamespace(uid="triton::scaled_mm_device_tma_main_loop_scaling")
    assert not indexing.reads_beyond_scales(template, shape)


@pytest.mark.parametrize(("scale", "is_right"), [(1.04, True), (1.08, True), (1.2, False), (float("nan"), False)])
def test_results_of_float8_may_differ_more(scale: float, is_right: bool) -> None:  # noqa: FBT001 - as above
    """A kernel may add up in fewer bits; one without its scales is still found out."""
    reference, output = Reference(), torch.randn(64, 64)
    assert reference.error_of(output, is_vendor=True) is None
    error = reference.error_of(output * scale, is_vendor=False)
    assert error is not None
    assert (error <= worst_error_of(parse_problem("scaled_mm:64x64x64").shape)) is is_right
    assert (
        worst_error_of(parse_problem("mm:64x64x64").shape)
        == benchmark_module.Candidate("", is_vendor=False, prepare=print).worst_error
    )


def test_fast_accumulation_loses_bits_along_k() -> None:
    """The longer K is, the more kernels with and without wgmma differ; zeros are never taken for a result."""
    plain, short, long = (
        worst_error_of(parse_problem(text).shape)
        for text in ("scaled_mm:64x64x16384/row", "scaled_mm:64x64x1024/row/fast", "scaled_mm:64x64x65536/row/fast")
    )
    assert plain < short < long < 1


def test_a_kernel_that_writes_nothing_is_found_out() -> None:
    """The output is cleared with what no kernel computes, also if it is of integers."""
    for dtype in (torch.bfloat16, torch.int32):
        reference, output = Reference(), torch.ones(8, 8, dtype=dtype)
        reference.error_of(output, is_vendor=True)
        clear(output, is_vendor=False)
        error = reference.error_of(output, is_vendor=False)
        assert error is not None
        assert not error <= worst_error_of(parse_problem("mm:64x64x64").shape)
        clear(output, is_vendor=True)
        assert not output.any()


def test_metrics_are_those_of_the_loaded_kernel() -> None:
    """Registers, spills and shared memory, as far as the launcher has them; else nothing."""
    launcher = SimpleNamespace(n_regs=168, n_spills=0, shared=65_536)
    request = SimpleNamespace(
        kernel_name="k", _benchmark_module=SimpleNamespace(k=SimpleNamespace(launchers=[launcher]))
    )
    every = {("registers_per_thread", ""): 168, ("spilled_registers", ""): 0, ("shared_memory", "B"): 65_536}
    assert metrics_of(SimpleNamespace(bmreq=request)) == every
    launcher.n_regs = None
    del every[("registers_per_thread", "")]
    assert metrics_of(SimpleNamespace(bmreq=request)) == every
    request._benchmark_module.k.launchers = []
    assert metrics_of(SimpleNamespace(bmreq=request)) == {}
    assert metrics_of(SimpleNamespace()) == {}


def test_each_op_is_timed_where_it_has_kernels() -> None:
    """A device says which problems it leaves out, and one that has none says what they need."""
    problems = [parse_problem(text) for text in ("mm:64x64x64", "scaled_mm:16x64x64", "grouped_mm:64x64x64:4/nt")]

    def device(arch: str, name: str = "cuda:0") -> SweepDevice:
        return SweepDevice(name, replace(samples.H200, name="GPU", arch=arch), Environment())

    assert with_kernels(problems, [device("sm_90")]) == (problems, None)
    kept, note = with_kernels(problems, [device("sm_90"), device("sm_89")])
    assert kept == problems[:2]
    assert note == "1 of 3 problems left out on GPU: grouped_mm needs an NVIDIA GPU of compute capability 9.0"
    assert with_kernels(problems, [device("gfx942")])[0] == problems[:1]
    with pytest.raises(HardwareError, match=r"nothing can be timed on GPU: scaled_mm needs .* capability 8\.9$"):
        with_kernels(problems[1:2], [device("sm_80")])
    with pytest.raises(HardwareError, match="mm_plus_mm needs a GPU"):
        with_kernels([parse_problem("mm_plus_mm:64x64x64")], [device("x86_64", "cpu")])
    attention = parse_problem("flex_attention:1x2x256x64")
    assert with_kernels([attention], [device("sm_90")]) == ([attention], None)
    kept, note = with_kernels([attention, problems[0]], [device("sm_90")], is_vendor=True)
    assert (kept, note) == (problems[:1], "1 of 2 problems left out on GPU: flex_attention has no vendor kernel")


def test_families_have_forward_passes_and_gradients() -> None:
    """Rows of a mixture of experts are tokens times experts; a gradient of weights sums over them."""
    problems = {(problem.name, str(problem)) for problem in family_problems("qwen3-30b-a3b-experts")}
    names = "qwen3-30b-a3b-experts"
    assert (f"{names}/gate_up", "grouped_mm:8x1536x2048:128/nt/bf16/2d3d") in problems
    assert (f"{names}/down", "grouped_mm:131072x2048x768:128/nt/bf16/2d3d/skew1") in problems
    assert (f"{names}/gate_up/dgrad", "grouped_mm:16384x2048x1536:128/nn/bf16/2d3d") in problems
    assert (f"{names}/gate_up/wgrad", "grouped_mm:1536x2048x16384:128/tn/bf16/2d2d/skew1") in problems
    scaled = {str(problem) for problem in family_problems("llama3-8b-fp8")}
    assert "scaled_mm:1x6144x4096/nt/e4m3/row/fast" in scaled
    assert "scaled_mm:2048x4096x6144/nt/e5m2+e4m3/tensor" in scaled
    assert "scaled_mm:6144x4096x2048/nt/e5m2+e4m3/tensor" in scaled
