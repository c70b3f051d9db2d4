"""Runs given problems through Inductor's autotuner on this device and spools what it measures.

Timings are those of Inductor's own benchmarker, as a user's compile would take them.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.feedback import FeedbackCollector
from diode_collectors.files import check_writable
from diode_store.errors import HardwareError
from diode_store.records import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from diode_collectors.shapes import SweepProblem

log = logging.getLogger(__name__)

MAX_FLOPS = {"cuda": math.inf, "cpu": 4e9}
"""How large a random problem may be; a CPU needs a tenth of a second for so many operations."""
_POOL_TIMEOUT_S = 120


@dataclass(frozen=True)
class SweepReport:
    """What a sweep came to."""

    sweep_id: str
    problems: int
    measured: int
    """Autotuning events that were recorded."""
    timings: int
    silent: int
    """Problems that Inductor did not autotune as such: it had one choice only, or made another op of them."""
    failed: int
    """Problems that did not compile or run, or could not be recorded."""
    dropped: int
    """Records that could not be written."""
    seconds: float
    interrupted: bool = False
    """Whether Ctrl-C ended it before the last problem."""


def default_device() -> str:
    """Return ``cuda`` if there is one, else ``cpu``."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(name: str) -> None:
    """Make sure that a sweep can run there.

    Raises:
        HardwareError: no such device.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise HardwareError(f"unknown device {name!r}; expected cuda, cuda:N or cpu") from error
    if device.type not in MAX_FLOPS:
        raise HardwareError(f"a sweep runs on cuda or cpu, not on {device.type}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise HardwareError(
            f"no device {name!r}: torch {torch.__version__} sees no such GPU; --device cpu works without"
        )


def check_can_be_timed(problems: Sequence[SweepProblem], device: str) -> None:
    """Make sure that Inductor will autotune at least one of ``problems``.

    Raises:
        HardwareError: none of them; the message says what would be.
    """
    if device != "cpu":
        return
    if all(problem.op != "bmm" and problem.dtype != "float32" for problem in problems):
        raise HardwareError(
            f"on a CPU oneDNN takes mm and addmm in {problems[0].dtype} over, which leaves nothing to time; "
            "use --dtype fp32, or bmm problems"
        )


def sweep(
    problems: Sequence[SweepProblem],
    spool: Path | str,
    *,
    device: str,
    search_space: str = "DEFAULT",
    seed: int | None = None,
    on_progress: Callable[[float], None] = lambda _done: None,
    on_failure: Callable[[SweepProblem, Exception], None] = lambda _problem, _error: None,
) -> SweepReport:
    """Have Inductor autotune ``problems`` and spool what it says of each.

    A problem that fails costs no other one.

    Args:
        problems: what to time.
        spool: where the records go; the sweep waits while it is full.
        device: ``cuda``, ``cuda:N`` or ``cpu``.
        search_space: which Triton configs Inductor lists: ``DEFAULT`` or ``EXHAUSTIVE``.
        seed: what ``problems`` were drawn with.
        on_progress: called with 1.0 after each problem.
        on_failure: called with a problem that failed, and why.

    Raises:
        SpoolError: the spool cannot be made or written.
    """
    check_writable(Path(spool))
    started = time.monotonic()
    sweep_id = uuid.uuid4().hex
    source: dict[str, Any] = {"source": Source.SWEEP, "sweep_id": sweep_id, "sample_seed": seed}
    with _autotuning(device, search_space), FeedbackCollector(spool, wait_when_full=True, **source) as collector:
        silent, failed, interrupted = _run_all(problems, device, collector, on_progress, on_failure)
    stats = collector.stats
    failed += stats.failed
    seconds = time.monotonic() - started
    return SweepReport(
        sweep_id, len(problems), stats.recorded, stats.timings, silent, failed, stats.dropped, seconds, interrupted
    )


def _run_all(
    problems: Sequence[SweepProblem],
    device: str,
    collector: FeedbackCollector,
    on_progress: Callable[[float], None],
    on_failure: Callable[[SweepProblem, Exception], None],
) -> tuple[int, int, bool]:
    """Return how many problems left nothing to time, how many failed, and whether Ctrl-C ended it."""
    silent = failed = 0
    for problem in problems:
        before = collector.stats
        try:
            _run(problem, device)
        except Exception as error:  # noqa: BLE001 - Inductor raises anything; the next problem may do better
            failed += 1
            on_failure(problem, error)
        except KeyboardInterrupt:  # what was measured is kept, and said
            return silent, failed, True
        else:
            silent += collector.stats.recorded + collector.stats.failed == before.recorded + before.failed
        on_progress(1.0)
    return silent, failed, False


def _run(problem: SweepProblem, device: str) -> None:
    import torch

    torch.compiler.reset()
    dtype = getattr(torch, problem.dtype)
    batch = (problem.b,) if problem.op == "bmm" else ()
    a = torch.zeros(*batch, problem.m, problem.k, dtype=dtype, device=device)
    b = torch.zeros(*batch, problem.k, problem.n, dtype=dtype, device=device)
    bias = torch.zeros(problem.n, dtype=dtype, device=device)
    # oneDNN takes a mm or addmm over before the autotuner sees it. Without it ATen is as fast in fp32, which other
    # libraries compute, and so slow in any other dtype that its times would mean nothing.
    keep_onednn = problem.dtype != "float32"
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=keep_onednn and torch.backends.mkldnn.enabled):
        compiled: Any = torch.compile(_product(problem.op, b, bias), mode="max-autotune-no-cudagraphs")
        compiled(a)


def _product(op: str, b: Any, bias: Any) -> Any:
    """Return a module that multiplies by ``b``: Inductor's C++ templates want to know their weight beforehand."""
    import torch

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = torch.nn.Parameter(b, requires_grad=False)
            self.bias = torch.nn.Parameter(bias, requires_grad=False)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            if op == "addmm":
                return torch.addmm(self.bias, a, self.b)
            return torch.bmm(a, self.b) if op == "bmm" else torch.mm(a, self.b)

    return Product()


@contextmanager
def _autotuning(device: str, search_space: str) -> Iterator[None]:
    """Make Inductor time every choice afresh, and keep its tables and warnings off the terminal."""
    import torch
    import torch._inductor.config as inductor_config
    from torch._inductor import select_algorithm
    from torch._inductor.utils import fresh_cache

    on_cpu = torch.device(device).type == "cpu"
    settings = {
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        "autotune_remote_cache": False,
        "max_autotune_gemm_backends": "CPP,ATEN" if on_cpu else "TRITON,ATEN",
        "max_autotune_gemm_search_space": search_space,
        # A seventh of EXHAUSTIVE cannot run for lack of shared memory; some versions would try.
        "max_autotune_prune_choices_based_on_shared_mem": True,
        # Each of its choices compiles a graph of its own.
        "triton.num_decompose_k_splits": 0,
        "max_autotune_report_choices_stats": False,
        "freezing": on_cpu,
    }
    known = inductor_config.get_config_copy()
    printed = select_algorithm.PRINT_AUTOTUNE
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module=r"torch\b")
        stack.enter_context(fresh_cache())
        stack.enter_context(inductor_config.patch({name: v for name, v in settings.items() if name in known}))
        if not on_cpu:
            _wait_for_compile_workers()
        select_algorithm.PRINT_AUTOTUNE = False
        try:
            yield
        finally:
            select_algorithm.PRINT_AUTOTUNE = printed
            torch.compiler.reset()


def _wait_for_compile_workers() -> None:
    """Let the first problem compile as fast as the others; without, its kernels compile in this process."""
    from torch._inductor.async_compile import AsyncCompile

    try:
        AsyncCompile.wait_pool_ready(_POOL_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - slower, no worse
        log.warning("compile workers are not ready: %s", error)
