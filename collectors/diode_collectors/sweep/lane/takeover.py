"""Replacement of Inductor's autotuner in a sweep's own process: its list, its benchmark, its savers."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from diode_collectors.inductor.convolutions import pointwise_convolutions_kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from torch._inductor.choices import InductorChoices

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace

_PRUNE = "early_config_prune"
"""Name of the function that drops configs of grouped products before Inductor makes choices of the rest."""


class Autotuner(Protocol):
    """Replacement for parts of Inductor's autotuner."""

    choices: InductorChoices
    """Handler that lists the choices."""

    def device_held(self) -> AbstractContextManager[None]:
        """Return a context around the preparation of inputs and the benchmark."""

    def benchmark(self, cache: Any, choices: Sequence[Any], tensors: Any) -> dict[Any, float]:
        """Return the milliseconds of each choice, ``inf`` for a failure.

        Args:
            cache: Inductor's ``AlgorithmSelectorCache``.
            choices: Choices that compiled.
            tensors: Inputs and outputs that Inductor prepared.
        """

    def on_feedback(self, timings: Any, name: str, input_nodes: Any, choices: Any) -> None:
        """Handle the event."""

    def offered(self, choices: list[Any]) -> list[Any]:
        """Return the choices to benchmark, of those that the op's lowering made."""

    def grouped(self, configs: list[Any]) -> list[Any]:
        """Return the configs to time of a grouped product, of Inductor's list for it."""


def settings_for(space: SearchSpace, *, on_cpu: bool, include_tma: bool) -> dict[str, Any]:
    """Return Inductor's settings for a sweep. Settings unknown to a version are left out later.

    Args:
        space: Search space.
        on_cpu: Time C++ kernels instead of Triton kernels.
        include_tma: List persistent-TMA templates.
    """
    templates = "" if space.is_vendor else "CPP," if on_cpu else "TRITON,"
    return {
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        "autotune_remote_cache": False,
        "max_autotune_gemm_backends": f"{templates}ATEN",
        "max_autotune_gemm_search_space": space.listed,
        # A seventh of EXHAUSTIVE needs too much shared memory; some versions would try.
        "max_autotune_prune_choices_based_on_shared_mem": True,
        # Each choice of decompose_k compiles its own graph.
        "triton.num_decompose_k_splits": 0,
        "triton.enable_persistent_tma_matmul": include_tma,
        # Choose before scheduling, without trying fusions.
        "benchmark_epilogue_fusion": False,
        "benchmark_template_fusion": False,
        "autotune_in_subproc": False,
        "pipeline_max_autotune_gemm": False,
        # Measure the requested sizes, and convolutions in the requested memory format.
        "shape_padding": False,
        "layout_optimization": False,
        "max_autotune_report_choices_stats": False,
        "freezing": on_cpu,
    }


@contextmanager
def taken_over(autotuner: Autotuner, settings: Mapping[str, Any]) -> Iterator[None]:
    """Have ``autotuner`` replace Inductor's, and restore everything at the end."""
    import torch._inductor.config as inductor_config
    from torch._inductor import select_algorithm
    from torch._inductor.virtualized import V

    cache = select_algorithm.get_algorithm_selector_cache()
    kind = select_algorithm.AlgorithmSelectorCache
    known = inductor_config.get_config_copy()
    savers, printed = list(cache.feedback_saver_fns), select_algorithm.PRINT_AUTOTUNE
    prepare, benchmark = kind.__dict__["benchmark_in_current_process"], kind.__dict__["benchmark_choices"]

    def prepare_alone(cls: Any, *arguments: Any, **named: Any) -> Any:
        with autotuner.device_held():
            return prepare.__func__(cls, *arguments, **named)

    def benchmark_ours(cls: Any, choices: Any, tensors: Any, *_: Any, **__: Any) -> dict[Any, float]:
        return autotuner.benchmark(cls, choices, tensors)

    def saver(timings: Any, name: str, input_nodes: Any, choices: Any, *_: Any, **__: Any) -> None:
        autotuner.on_feedback(timings, name, input_nodes, choices)

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"torch\b")
        stack.enter_context(inductor_config.patch({name: v for name, v in settings.items() if name in known}))
        stack.enter_context(V.set_choices_handler(autotuner.choices))
        cache.feedback_saver_fns = [saver]
        select_algorithm.PRINT_AUTOTUNE = False
        kind.benchmark_in_current_process, kind.benchmark_choices = (
            classmethod(prepare_alone),
            classmethod(benchmark_ours),
        )
        preprocessing = cache.preprocessing_fns
        cache.preprocessing_fns = [*preprocessing, autotuner.offered]
        stack.enter_context(_grouped_list_taken_over(autotuner))
        stack.enter_context(pointwise_convolutions_kept())
        try:
            yield
        finally:
            cache.preprocessing_fns = preprocessing
            cache.feedback_saver_fns, select_algorithm.PRINT_AUTOTUNE = savers, printed
            kind.benchmark_in_current_process, kind.benchmark_choices = prepare, benchmark


def leave_products_to_the_autotuner() -> None:
    """Keep oneDNN's patterns, which take mm and addmm over before the autotuner sees them, out of this process.

    Inductor adds them for good at the first compile, if oneDNN is enabled then; a problem's result must not depend
    on which problem came first.
    """
    import torch
    from torch._inductor.fx_passes import mkldnn_fusion

    with torch.backends.mkldnn.flags(enabled=False):
        for name in ("_mkldnn_fusion_init", "_mkldnn_weight_pack_init"):
            getattr(mkldnn_fusion, name, lambda: None)()


def allow_tf32(problem: SweepProblem, *, on_cpu: bool) -> None:
    """Let kernels compute a float32 problem in TF32 from now on if it allows that, else not."""
    import torch

    if problem.entry.is_convolution:
        # The newer ``cudnn.fp32_precision`` stays unset, as in a user's process: Inductor's templates follow it.
        torch.backends.cudnn.allow_tf32 = problem.allow_tf32
    elif not on_cpu:
        torch.set_float32_matmul_precision("high" if problem.allow_tf32 else "highest")


@contextmanager
def _grouped_list_taken_over(autotuner: Autotuner) -> Iterator[None]:
    """Have ``autotuner`` choose among the configs of grouped products, which no choices handler sees.

    ``early_config_prune`` is the last function that has the whole list. It drops what the sizes and the device exclude.
    """
    try:
        from torch._inductor.kernel import mm_grouped
    except ImportError:  # a version without grouped products, which such a sweep finds silent
        yield
        return
    prune = getattr(mm_grouped, _PRUNE, None)

    def prune_and_choose(*arguments: Any, **named: Any) -> list[Any]:
        return autotuner.grouped(prune(*arguments, **named))  # type: ignore[misc]  # replaced only if there

    if prune is not None:
        setattr(mm_grouped, _PRUNE, prune_and_choose)
    try:
        yield
    finally:
        if prune is not None:
            setattr(mm_grouped, _PRUNE, prune)
