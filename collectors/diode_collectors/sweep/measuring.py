"""Measures one problem: a real torch.compile whose autotuner is given our list of choices and our benchmark.

Inductor lists, generates and compiles the kernels and prepares their inputs; from there on they are ours: the device
is taken for this process alone, each choice is timed by ``benchmark``, and once the record is made the compile is
given up, for its result is of no use. Everything of ``torch._inductor`` that is replaced is put back on ``close``.
"""

from __future__ import annotations

import gc
import time
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.device import device_uuid
from diode_collectors.device_state import DeviceMonitor
from diode_collectors.inductor import config_of_choice
from diode_collectors.inductor_records import measurement_from_feedback
from diode_collectors.sweep.benchmark import Candidate, DeviceLostError, relative_error, time_all
from diode_collectors.sweep.exclusive import DeviceLock
from diode_collectors.sweep.timer import CpuTimer, GpuTimer
from diode_store.errors import HardwareError
from diode_store.records import Outcome, Source, Timing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_collectors.device_state import DeviceSample
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.timer import Timer
    from diode_store.records import KernelConfig, Measurement

LAUNCH_NOT_HIDDEN = "launch_not_hidden"
_SAMPLE_EVERY = 50
_MEMORY_FACTOR = 4
_SPARE_BYTES = 2**30
_US_PER_MS = 1e3


class _EnoughError(Exception):
    """The record is made; what is left of the compile is given up."""


class LostConfigError(Exception):
    """A kernel left the device in a state in which this process cannot use it."""

    def __init__(self, config: KernelConfig, message: str) -> None:
        super().__init__(message)
        self.config = config


@dataclass(frozen=True)
class MeasuringOptions:
    """What stays the same for all problems of a process."""

    device: str
    space: SearchSpace
    sweep_id: str
    seed: int
    include_tma: bool
    mode: str
    lock_folder: Path
    benchmark_core: int | None = None
    """The core that benchmarks and nothing else of this sweep runs on."""
    root_pid: int | None = None
    """The process that started all of this sweep; None for this one."""
    contexts: int = 1
    """How many processes of this sweep use the device."""


@dataclass
class Measured:
    """What came of one problem."""

    measurement: Measurement | None = None
    silent: str | None = None
    """Why there is no measurement, though nothing failed."""
    compile_s: float = 0.0
    wait_s: float = 0.0
    benchmark_s: float = 0.0


class Measuring:
    """Measures problems on one device, one after the other, in the thread that made it."""

    def __init__(self, options: MeasuringOptions, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Prepare Inductor.

        Args:
            options: what to time, and where.
            heartbeat: called now and then while the device is held.
        """
        from torch._inductor.utils import fresh_cache

        from diode_collectors.sweep.sampling import SweepChoices

        self._options = options
        self._heartbeat = heartbeat
        self._fresh_cache = fresh_cache
        self._on_cpu = options.device == "cpu"
        uuid = None if self._on_cpu else device_uuid(options.device)
        self._monitor = DeviceMonitor(uuid, root_pid=options.root_pid, contexts=options.contexts)
        self._timer: Timer | None = None
        self._lock = DeviceLock(options.lock_folder, uuid or "cpu", options.benchmark_core)
        self.choices = SweepChoices(options.space, options.seed)
        self._excluded: Mapping[KernelConfig, Outcome] = {}
        self._asked: SweepProblem | None = None
        self._offered: list[list[Any]] = []
        self._timed: dict[Any, Candidate] = {}
        self._samples: list[DeviceSample] = []
        self._late = 0
        self._result = Measured()
        self._started = 0.0
        self._stack = ExitStack()
        self._stack.enter_context(self._inductor())

    def close(self) -> None:
        """Leave Inductor as it was."""
        self._stack.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def measure(self, problem: SweepProblem, excluded: Mapping[KernelConfig, Outcome] | None = None) -> Measured:
        """Return the measurement of ``problem``, or why there is none.

        Args:
            problem: what to measure.
            excluded: configs that are not tried again, and how trying them ended.

        Raises:
            HardwareError: it does not fit into the device's memory.
            LostConfigError: a kernel broke the device; this process is of no more use.
            Exception: whatever torch raised; the next problem may do better.
        """
        self._start(problem, excluded or {})
        inputs = self._inputs(problem)
        try:
            with self._fresh_cache():
                self._compile(problem, inputs)
        except Exception as error:
            lost = _cause(error, DeviceLostError)
            if lost is not None:
                config = config_of_choice(list(self._timed)[lost.index])
                raise LostConfigError(config, str(lost)) from error
            if self._result.measurement is None and self._result.silent is None:
                raise
        finally:
            self._forget()
        if self._result.measurement is None and self._result.silent is None:
            self._result.silent = self._why_silent()
        return self._result

    def _start(self, problem: SweepProblem, excluded: Mapping[KernelConfig, Outcome]) -> None:
        import torch

        torch.compiler.reset()
        self._asked, self._excluded = problem, excluded
        self.choices.excluded = excluded
        self._offered, self._timed, self._samples = [], {}, []
        self._result = Measured()
        self._started = time.monotonic()
        if not self._on_cpu:
            torch.set_float32_matmul_precision("high" if problem.allow_tf32 else "highest")

    def _inputs(self, problem: SweepProblem) -> tuple[Any, Any, Any]:
        """Return A, B and the bias; their values do not matter, Inductor times with random ones of its own."""
        import torch

        if not self._on_cpu:
            needed = _MEMORY_FACTOR * problem.memory_bytes + _SPARE_BYTES
            free, _ = torch.cuda.mem_get_info(torch.device(self._options.device))
            if needed > free:
                raise HardwareError(
                    f"{problem} needs about {needed / 2**30:.1f} GiB of device memory, {free / 2**30:.1f} GiB are "
                    "free; leave it out, or stop what else runs there"
                )
        specs = problem.problem().inputs
        dtype = getattr(torch, problem.dtype)

        def tensor(size: Sequence[int], stride: Sequence[int]) -> Any:
            return torch.empty_strided(size, stride, dtype=dtype, device=self._options.device)

        a, b = (tensor(spec.size, spec.stride) for spec in specs[-2:])
        if problem.op == "addmm":
            return a, b, tensor((problem.n,), (1,))
        return a, b, tensor(specs[0].size, specs[0].stride) if problem.op == "baddbmm" else None

    def _compile(self, problem: SweepProblem, inputs: tuple[Any, Any, Any]) -> None:
        import torch

        a, b, bias = inputs
        # oneDNN takes a mm or addmm over before the autotuner sees it. Without it ATen is as fast in fp32, which other
        # libraries compute, and so slow in any other dtype that its times would mean nothing.
        keep_onednn = problem.dtype != "float32" and torch.backends.mkldnn.enabled
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=keep_onednn):
            compiled: Any = torch.compile(_product(problem.op, b, bias), mode=self._options.mode)
            compiled(a)

    def _forget(self) -> None:
        """Let go of kernels and tensors: what a problem took must not be missing to the next ones."""
        self._timed, self._offered = {}, []
        self.choices.excluded = ()
        gc.collect()

    def _why_silent(self) -> str:
        if self._seen_single:
            return "Inductor had one choice only"
        return "Inductor made something else of it, which it does not autotune"

    @contextmanager
    def _inductor(self) -> Iterator[None]:
        """Put our list, our benchmark and our saver into Inductor."""
        import torch._inductor.config as inductor_config
        from torch._inductor import select_algorithm
        from torch._inductor.virtualized import V

        cache = select_algorithm.get_algorithm_selector_cache()
        kind = select_algorithm.AlgorithmSelectorCache
        known = inductor_config.get_config_copy()
        settings = {name: value for name, value in self._settings().items() if name in known}
        before = (list(cache.feedback_saver_fns), list(cache.preprocessing_fns), select_algorithm.PRINT_AUTOTUNE)
        benchmark = kind.__dict__["benchmark_in_current_process"]
        choices = kind.__dict__["benchmark_choices"]
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"torch\b")
            stack.enter_context(inductor_config.patch(settings))
            stack.enter_context(V.set_choices_handler(self.choices))
            cache.feedback_saver_fns = [self._on_feedback]
            cache.preprocessing_fns = [*before[1], self._on_choices]
            select_algorithm.PRINT_AUTOTUNE = False
            kind.benchmark_in_current_process = classmethod(self._holding_the_device(benchmark.__func__))
            kind.benchmark_choices = classmethod(self._benchmark_choices)
            try:
                yield
            finally:
                cache.feedback_saver_fns, cache.preprocessing_fns, select_algorithm.PRINT_AUTOTUNE = before
                kind.benchmark_in_current_process, kind.benchmark_choices = benchmark, choices

    def _settings(self) -> dict[str, Any]:
        return {
            "fx_graph_cache": False,
            "autotune_local_cache": False,
            "autotune_remote_cache": False,
            "max_autotune_gemm_backends": "CPP,ATEN" if self._on_cpu else "TRITON,ATEN",
            "max_autotune_gemm_search_space": self._options.space.listed,
            # A seventh of EXHAUSTIVE cannot run for lack of shared memory; some versions would try.
            "max_autotune_prune_choices_based_on_shared_mem": True,
            # Each of its choices compiles a graph of its own.
            "triton.num_decompose_k_splits": 0,
            "triton.enable_persistent_tma_matmul": self._options.include_tma,
            # Choose at once, not in the scheduler with fusions tried too.
            "benchmark_epilogue_fusion": False,
            "benchmark_template_fusion": False,
            # Measure the sizes that were asked for.
            "shape_padding": False,
            "max_autotune_report_choices_stats": False,
            "freezing": self._on_cpu,
        }

    def _on_choices(self, choices: list[Any]) -> list[Any]:
        """Remember the whole list: a choice that does not compile vanishes from it."""
        self._offered.append(list(choices))
        return choices

    @property
    def _seen_single(self) -> bool:
        return any(len(choices) == 1 for choices in self._offered)

    def _holding_the_device(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return Inductor's preparation of inputs and benchmark, with the device held for this process alone."""

        def benchmark(cls: Any, *arguments: Any, **named: Any) -> Any:
            self._result.compile_s = time.monotonic() - self._started
            with self._lock:
                began = time.monotonic()
                self._result.wait_s = began - self._started - self._result.compile_s
                try:
                    return original(cls, *arguments, **named)
                finally:
                    self._result.benchmark_s = time.monotonic() - began

        return benchmark

    def _benchmark_choices(self, cls: Any, choices: Sequence[Any], tensors: Any, *_: Any, **__: Any) -> dict[Any, float]:
        """Stand in for Inductor's loop over the choices; it wants milliseconds."""
        timer = self._timer = self._timer or (CpuTimer() if self._on_cpu else GpuTimer())
        late_before = timer.late_launches
        reference = _Reference()
        self._timed = {choice: self._candidate(cls, choice, tensors, reference) for choice in choices}
        candidates = list(self._timed.values())
        time_all(candidates, timer, seed=self._options.seed)
        self._samples.append(self._monitor.sample())
        self._late = timer.late_launches - late_before
        return {
            choice: candidate.median_us / _US_PER_MS if candidate.outcome is Outcome.OK else float("inf")
            for choice, candidate in self._timed.items()
        }

    def _candidate(self, cls: Any, choice: Any, tensors: Any, reference: _Reference) -> Candidate:
        is_vendor = bool(cls._is_extern(choice))  # noqa: SLF001 - how Inductor itself tells
        _, output = tensors.get_benchmark_tensors(is_vendor).unpack()

        def prepare() -> Callable[[], object]:
            self._heartbeat()
            if len(self._samples) * _SAMPLE_EVERY <= reference.prepared:
                self._samples.append(self._monitor.sample())
            reference.prepared += 1
            return _captured(lambda: cls.benchmark_choice(choice, tensors))

        return Candidate(choice.name, is_vendor, prepare, lambda: reference.error_of(output, is_vendor=is_vendor))

    def _on_feedback(
        self, timings: Any, name: str, input_nodes: Any, choices: Any, *_: Any, **__: Any
    ) -> None:
        """Make the record of what was timed, and end the compile."""
        seen = {id(choice) for choice in timings}
        offered = next((known for known in self._offered if any(id(choice) in seen for choice in known)), [])
        lost = [choice for choice in offered if id(choice) not in seen]
        measurement = measurement_from_feedback(
            timings,
            name,
            input_nodes,
            choices,
            lost=lost,
            timing_of=lambda choice, config, _ms: self._timed[choice].timing(config),
            source=Source.SWEEP,
            sweep_id=self._options.sweep_id,
            sample_seed=self._options.seed,
            search_space=str(self._options.space),
            timing_method=self._timer.method if self._timer else None,
            device_state=self._monitor.summary(self._samples),
            flags=self._flags(),
        )
        assert self._asked is not None
        if measurement.problem.key != self._asked.problem().key:
            self._result.silent = f"Inductor made another problem of it: {measurement.problem.shape}"
        else:
            self._result.measurement = self._with_excluded(measurement)
        raise _EnoughError

    def _flags(self) -> tuple[str, ...]:
        flags = self._monitor.flags(self._samples)
        return (*flags, LAUNCH_NOT_HIDDEN) if self._late else flags

    def _with_excluded(self, measurement: Measurement) -> Measurement:
        from dataclasses import replace

        missing = [Timing(config, None, outcome) for config, outcome in self._excluded.items()]
        return replace(measurement, timings=(*measurement.timings, *missing)) if missing else measurement


class _Reference:
    """What the first vendor kernel computed, which the others must agree with."""

    def __init__(self) -> None:
        self._expected: Any = None
        self.prepared = 0

    def error_of(self, output: Any, *, is_vendor: bool) -> float | None:
        # A vendor kernel without an ``out`` argument leaves the output alone, so only others are compared.
        if is_vendor:
            if self._expected is None and bool(output.any()):
                self._expected = output.clone()
            return None
        return None if self._expected is None else relative_error(output, self._expected)


def _captured(benchmark: Callable[[], object]) -> Callable[[], object]:
    """Return the call that Inductor would have timed.

    Whatever kind of choice it is, it ends in a method of the one benchmarker that all modules share.
    """
    from torch._inductor.runtime.benchmarking import benchmarker

    found: list[Callable[[], object]] = []

    def keep(function: Any, arguments: Any = (), named: Any = None, **_: Any) -> float:
        # benchmark_cpu and benchmark_gpu are given a warm-up time where benchmark is given arguments.
        if isinstance(arguments, (tuple, list)) and (arguments or named):
            found.append(lambda: function(*arguments, **(named or {})))
        else:
            found.append(function)
        return 0.0

    names = ("benchmark", "benchmark_cpu", "benchmark_gpu")
    for name in names:
        setattr(benchmarker, name, keep)
    try:
        benchmark()
    finally:
        for name in names:
            delattr(benchmarker, name)
    if not found:
        raise RuntimeError("Inductor refused to benchmark it")
    return found[-1]


def _cause(error: BaseException | None, kind: type[Any]) -> Any:
    """Return the exception of ``kind`` that ``error`` is or comes from, or None."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _product(op: str, b: Any, bias: Any) -> Any:
    """Return a module that multiplies by ``b``: Inductor's C++ templates want to know their weight beforehand."""
    import torch

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = torch.nn.Parameter(b, requires_grad=False)
            self.bias = None if bias is None else torch.nn.Parameter(bias, requires_grad=False)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            if self.bias is not None:
                return (torch.addmm if op == "addmm" else torch.baddbmm)(self.bias, a, self.b)
            return torch.bmm(a, self.b) if op == "bmm" else torch.mm(a, self.b)

    return Product()
