"""Every private name of torch that the collectors use, so that a new torch breaks here first and says where."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

import pytest
import torch

from diode_collectors.inductor.kernel_metrics import _ON_LAUNCHER

INDUCTOR = "torch._inductor"
NAMES = [
    (f"{INDUCTOR}.choices", "InductorChoices._finalize_template_configs"),
    (f"{INDUCTOR}.virtualized", "V.choices"),
    (f"{INDUCTOR}.select_algorithm", "add_feedback_saver"),
    (f"{INDUCTOR}.select_algorithm", "add_preprocessing_fn"),
    (f"{INDUCTOR}.select_algorithm", "get_algorithm_selector_cache"),
    (f"{INDUCTOR}.select_algorithm", "PRINT_AUTOTUNE"),
    (f"{INDUCTOR}.select_algorithm", "AlgorithmSelectorCache._is_extern"),
    (f"{INDUCTOR}.select_algorithm", "AlgorithmSelectorCache.benchmark_choice"),
    (f"{INDUCTOR}.select_algorithm", "AlgorithmSelectorCache.benchmark_choices"),
    (f"{INDUCTOR}.select_algorithm", "AlgorithmSelectorCache.benchmark_in_current_process"),
    (f"{INDUCTOR}.select_algorithm", "AlgorithmSelectorCache.make_precompile_fn"),
    (f"{INDUCTOR}.select_algorithm", "AutotuneArgs.get_benchmark_tensors"),
    (f"{INDUCTOR}.select_algorithm", "TritonTemplateCaller"),
    (f"{INDUCTOR}.select_algorithm", "TritonTemplate.generate_and_load"),
    (f"{INDUCTOR}.select_algorithm", "GenerateAndLoadResult._fields"),
    (f"{INDUCTOR}.select_algorithm", "PyCodeCache.load"),
    (f"{INDUCTOR}.autotune_process", "BenchmarkRequest.cleanup_run_fn"),
    (f"{INDUCTOR}.autotune_process", "TritonGPUBenchmarkRequest.make_run_fn"),
    (f"{INDUCTOR}.codecache", "PyCodeCache.load_by_key_path"),
    (f"{INDUCTOR}.async_compile", "AsyncCompile.triton"),
    (f"{INDUCTOR}.async_compile", "AsyncCompile.use_process_pool"),
    (f"{INDUCTOR}.runtime.benchmarking", "benchmarker.benchmark"),
    (f"{INDUCTOR}.runtime.benchmarking", "benchmarker.benchmark_cpu"),
    (f"{INDUCTOR}.runtime.benchmarking", "benchmarker.benchmark_gpu"),
    (f"{INDUCTOR}.runtime.triton_heuristics", "CachingAutotuner.precompile"),
    (f"{INDUCTOR}.kernel.mm_common", "load_kernel_template"),
    (f"{INDUCTOR}.kernel.mm_grouped", "early_config_prune"),
    (f"{INDUCTOR}.utils", "fresh_cache"),
    (f"{INDUCTOR}.async_compile", "AsyncCompile.wait_pool_ready"),
    (f"{INDUCTOR}.runtime.benchmarking", "benchmarker"),
    (f"{INDUCTOR}.config", "autotune_local_cache"),
    (f"{INDUCTOR}.config", "deterministic"),
    (f"{INDUCTOR}.config", "distributed_max_autotune_gemm"),
    (f"{INDUCTOR}.config", "freezing"),
    (f"{INDUCTOR}.config", "fx_graph_cache"),
    (f"{INDUCTOR}.config", "max_autotune_gemm_backends"),
    (f"{INDUCTOR}.config", "max_autotune_gemm_search_space"),
    (f"{INDUCTOR}.config", "max_autotune_prune_choices_based_on_shared_mem"),
    (f"{INDUCTOR}.config", "pipeline_max_autotune_gemm"),
    (f"{INDUCTOR}.config", "triton.num_decompose_k_splits"),
    (f"{INDUCTOR}.sizevars", "SizeVarAllocator"),
    (f"{INDUCTOR}.kernel_template_choice", "KernelTemplateChoice"),
    (f"{INDUCTOR}.kernel_inputs", "MMKernelInputs.mat1mat2"),
    (f"{INDUCTOR}.kernel_inputs", "MMKernelInputs.out_dtype"),
    (f"{INDUCTOR}.kernel_inputs", "KernelInputs.nodes"),
    ("torch._dynamo.utils", "counters"),
    ("torch.backends", "cuda.matmul"),
]

SINCE = {"pipeline_max_autotune_gemm": (2, 11)}
"""Names that older versions of torch lack, which the collectors do without there."""


@pytest.mark.parametrize(("module", "name"), NAMES, ids=lambda value: value)
def test_torch_still_has(module: str, name: str) -> None:
    """The name is there."""
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < SINCE.get(name, (0, 0)):
        pytest.skip("this torch is older than the name")
    attrgetter(name)(import_module(module))


def test_sizes_have_hints() -> None:
    """One of the two ways to a symbolic size's hint is there."""
    sizes = import_module(f"{INDUCTOR}.sizevars").SizeVarAllocator
    assert hasattr(sizes, "optimization_hints_with_override") or hasattr(sizes, "size_hints")


def test_benchmarks_are_counted() -> None:
    """Replays are told by the counter that a benchmark raises; its name is still in the source."""
    source = import_module("inspect").getsource(import_module(f"{INDUCTOR}.select_algorithm"))
    assert 'counters["inductor"]["select_algorithm_autotune"] += 1' in source


@pytest.mark.parametrize(
    ("module", "count"),
    [
        (f"{INDUCTOR}.kernel.mm", 'counters["aten_mm_info"]'),
        (f"{INDUCTOR}.kernel.bmm", 'counters["aten_mm_info"]'),
        (f"{INDUCTOR}.decomposition", 'counters["inductor"]["decompose_mm"] += 1'),
        (f"{INDUCTOR}.codecache", 'counters["inductor"]["fxgraph_cache_hit"] += 1'),
        ("torch._functorch._aot_autograd.autograd_cache", 'counters["aot_autograd"]["autograd_cache_hit"] += 1'),
    ],
)
def test_what_coverage_is_made_of_is_counted(module: str, count: str) -> None:
    """Coverage goes by counters of torch's; their names are still in the source."""
    assert count in import_module("inspect").getsource(import_module(module))


def test_failed_choices_are_marked() -> None:
    """A choice that does not compile is told by the mark that Inductor leaves."""
    caller = import_module(f"{INDUCTOR}.ir").ChoiceCaller
    choice = caller.__new__(caller)
    choice.mark_failed()
    assert choice.failed is True


def test_kernels_load_without_the_device() -> None:
    """A sweep loads what is compiled before it holds the device."""
    precompile = import_module(f"{INDUCTOR}.runtime.triton_heuristics").CachingAutotuner.precompile
    assert "warm_cache_only" in import_module("inspect").signature(precompile).parameters


def test_preprocessing_comes_first() -> None:
    """Lists of choices are preprocessed before Inductor looks how many there are."""
    source = import_module("inspect").getsource(
        import_module(f"{INDUCTOR}.select_algorithm").AlgorithmSelectorCache.__call__
    )
    assert 0 < source.index("preprocessing_fn(choices)") < source.index("len(choices) == 1")


def test_configs_of_grouped_products_are_pruned_by_name() -> None:
    """Their lowering looks up the function that a sweep replaces, and gives it every config."""
    module = import_module(f"{INDUCTOR}.kernel.mm_grouped")
    source = import_module("inspect").getsource(module._tuned_grouped_mm_common)
    assert "in early_config_prune(" in source
    assert (
        source.index("early_config_prune(")
        < source.index("grouped_mm_configs()")
        < source.index(".maybe_append_choice(")
    )


def test_launchers_tell_what_a_kernel_takes() -> None:
    """A sweep reads registers, spills and shared memory from them."""
    source = import_module("inspect").getsource(import_module(f"{INDUCTOR}.runtime.triton_heuristics"))
    assert all(f"launcher.{name} = " in source for name in _ON_LAUNCHER.values())
    assert "self.launchers" in source
