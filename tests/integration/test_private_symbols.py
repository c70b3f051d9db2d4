"""A canary: every private symbol of torch that the hook relies on, so that an upgrade names what went missing."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.compiler.config as compiler_config
from torch._dynamo.utils import compilation_time_metrics
from torch._inductor import choices as inductor_choices
from torch._inductor import config as inductor_config
from torch._inductor import virtualized
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel_inputs import KernelInputs
from torch._inductor.kernel_template_choice import KernelTemplateChoice
from torch._inductor.runtime import hints, triton_heuristics
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.select_algorithm import AlgorithmSelectorCache, AutotuneArgs, get_algorithm_selector_cache
from torch._inductor.utils import _use_conv_autotune_backend, use_aten_gemm_kernels

import diode_integration
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import second_try, unranked
from diode_integration.inductor.after_import import ENTRANCES
from diode_integration.inductor.as_if_cuda import heuristic_registry
from diode_integration.inductor.benchmark import _LEFT_TO_INDUCTOR
from diode_store.ops import FUSED_OPS


def test_hook_has_the_signature_we_override() -> None:
    """The overridden method takes the arguments that Inductor passes, by the same names."""
    theirs = inspect.signature(InductorChoices._finalize_template_configs).parameters
    ours = inspect.signature(DiodeInductorChoices._finalize_template_configs).parameters
    assert list(theirs) == list(ours)


def test_candidates_of_a_template_can_be_listed_again() -> None:
    """``get_ktc`` lists one template's candidates."""
    names = ["self", "kernel_inputs", "template", "op_name", "kwarg_overrides"]
    assert list(inspect.signature(InductorChoices.get_ktc).parameters) == names


def test_process_wide_installation() -> None:
    """Torch registers handlers itself, or has the configuration entry whose default reaches every thread."""
    if hasattr(inductor_choices, "register_inductor_choices"):
        assert list(inspect.signature(inductor_choices.register_inductor_choices).parameters) == ["key", "factory"]
        assert list(inspect.signature(inductor_choices.unregister_inductor_choices).parameters) == ["key"]
    else:
        assert hasattr(inductor_config._config["inductor_choices_class"], "default")
        assert isinstance(compiler_config.cache_key_tag, str)


@pytest.mark.parametrize("name", ["threadlocal", "_choices"])
def test_thread_local_handlers(name: str) -> None:
    """Handlers are kept per thread under a known key."""
    assert hasattr(virtualized, name)
    assert virtualized._choices._key == "__torchinductor_choices"


def test_preprocessing_runs_before_choices_are_counted() -> None:
    """The selector runs its preprocessing functions on every list of choices, ahead of the single-choice check."""
    assert isinstance(get_algorithm_selector_cache().preprocessing_fns, list)
    source = inspect.getsource(AlgorithmSelectorCache.__call__)
    assert source.index("in self.preprocessing_fns") < source.index("len(choices) == 1")


def test_choices_carry_their_ktcs_annotations() -> None:
    """A KernelTemplateChoice hands its annotations to the choice that it makes."""
    source = inspect.getsource(KernelTemplateChoice)
    assert "annotations = self.annotations" in source
    assert list(inspect.signature(KernelTemplateChoice.__init__).parameters)[1:] == [
        "template",
        "params",
        "extra_kwargs",
        "layout",
        "inputs",
    ]


@pytest.mark.parametrize("name", ["device", "nodes", "output_layout", "out_dtype", "device_type"])
def test_kernel_inputs(name: str) -> None:
    """What the hook asks of a call's inputs."""
    assert hasattr(KernelInputs, name)


@pytest.mark.parametrize(
    "name", ["max_autotune", "max_autotune_gemm", "max_autotune_gemm_search_space", "cpu_backend", "multi_kernel_hints"]
)
def test_configuration(name: str) -> None:
    """What the hook reads of Inductor's configuration."""
    assert hasattr(inductor_config, name)


@pytest.mark.parametrize(("module", "name"), [("mm", "mm_template"), ("bmm", "bmm_template")])
def test_templates(module: str, name: str) -> None:
    """Templates that are listed as if on another device."""
    assert getattr(importlib.import_module(f"torch._inductor.kernel.{module}"), name).uid == f"triton::{module}"


def test_heuristics_of_another_device() -> None:
    """The registry hands out the CUDA heuristic of a template on any machine."""
    heuristic = heuristic_registry().get_template_heuristic("triton::mm", "cuda", "mm")
    assert callable(heuristic.get_template_configs)
    assert callable(heuristic.get_extra_kwargs)


def test_a_compile_imports_what_the_deferred_hook_waits_for() -> None:
    """Dynamo's backend imports the entrance in the compile, and the entrance imports no choices handler."""
    inductor = importlib.import_module("torch._dynamo.backends.inductor")
    assert "from torch._inductor.compile_fx import compile_fx" in inspect.getsource(inductor.inductor)
    assert "compile_fx" in ENTRANCES[0]
    assert all(find_spec(name) is not None for name in ENTRANCES)


def test_a_graph_is_compiled_by_one_function() -> None:
    """The hook wraps it, to compile a graph again; its source is read, since importing it warns."""
    spec = find_spec("torch._inductor.compile_fx")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    assert f"\ndef {second_try.ENTRANCE}(" in source
    assert f"mb_compiled_graph = {second_try.ENTRANCE}(" in source  # looked up at each call


def test_ops_that_no_model_ranks_have_a_lowering() -> None:
    """The hook wraps it, and asks whether the vendor kernel is listed."""
    from torch._inductor import lowering  # takes long

    found = {op: of for of, op in unranked.lowered_ops(lowering.lowerings)}
    assert torch.ops.aten.convolution.default in found
    assert set(found.values()) == set(unranked.UNRANKED)
    assert callable(_use_conv_autotune_backend)
    assert callable(use_aten_gemm_kernels)


def test_compile_seconds_are_kept_by_name() -> None:
    """The report reads PyTorch's own metrics."""
    assert isinstance(compilation_time_metrics, dict)


def test_what_follows_a_product_can_be_seen() -> None:
    """Lowering says at which node of the graph it is, and a setting whether Inductor fuses behind a template."""
    assert inspect.signature(GraphLowering.set_current_node).parameters
    assert inductor_config.epilogue_fusion is True


def test_choices_are_benchmarked_by_one_method() -> None:
    """The hook's clock stands in for it; it is given choices and tensors, and makes times of both."""
    method = AlgorithmSelectorCache.__dict__["benchmark_choices"]
    assert isinstance(method, classmethod)
    assert list(inspect.signature(method.__func__).parameters)[:4] == [
        "cls",
        "choices",
        "autotune_args",
        "is_collective",
    ]
    assert callable(AlgorithmSelectorCache.benchmark_choice)
    assert callable(AlgorithmSelectorCache._is_extern)
    assert "extern" in inspect.signature(AutotuneArgs.get_benchmark_tensors).parameters


def test_times_are_kept_under_a_key_of_inputs() -> None:
    """The hook's clock adds itself to the key; without a benchmark the lookup returns what is kept."""
    names = list(inspect.signature(AlgorithmSelectorCache.lookup).parameters)
    assert names[:5] == ["self", "choices", "op", "inputs", "benchmark"]


@pytest.mark.parametrize("name", _LEFT_TO_INDUCTOR)
def test_settings_that_keep_inductors_benchmark(name: str) -> None:
    """The hook's clock does not run under them."""
    assert hasattr(inductor_config, name)


def test_private_symbols_are_imported_in_one_room() -> None:
    """Outside the hook's room ``inductor`` nothing imports Inductor's or Dynamo's modules, but for annotations."""
    package = Path(diode_integration.__file__).parent
    elsewhere = [path for path in package.rglob("*.py") if "inductor" not in path.relative_to(package).parts]
    found = [f"{path.name}: {name}" for path in elsewhere for name in _imported(ast.parse(path.read_text()))]
    assert [name for name in found if re.search(r": torch\._", name)] == []
    assert len(elsewhere) > 15


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that code imports at run time."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return []
    here = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    here += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
    return here + [name for child in ast.iter_child_nodes(node) for name in _imported(child)]


def test_fused_kernels() -> None:
    """Inductor generates a kernel's source, lists its configs and times them under the names that we wrap and read."""
    assert list(inspect.signature(TritonKernel.codegen_kernel).parameters) == ["self", "name"]
    for name in ("bench", "autotune_to_one_config", "coordinate_descent_tuning"):
        assert inspect.isfunction(vars(CachingAutotuner)[name])
    assert {"X", "Y", "Z", "R0_", "R1_"} <= set(hints.TRITON_MAX_BLOCK)
    assert list(inspect.signature(triton_heuristics.fixed_config).parameters)[:4] == [
        "config",
        "filename",
        "triton_meta",
        "inductor_meta",
    ]
    assert {kind.name.lower() for kind in hints.HeuristicType} >= set(FUSED_OPS)
    assert inductor_config.autotune_lookup_table == {}
    parameters = inspect.signature(triton_heuristics.generate_lookup_hash_from_source_code).parameters
    assert list(parameters) == ["size_hints_str", "source_code"]
