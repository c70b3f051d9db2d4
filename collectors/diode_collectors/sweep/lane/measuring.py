"""Measurement of one problem: a real torch.compile whose autotuner gets our list of choices and our benchmark.

Inductor lists, generates and compiles the kernels, and prepares their inputs. From there on the sweep does the work. It
locks the device for this process, and ``benchmark`` times each choice. Once the record is made, the compile is
abandoned.
"""

from __future__ import annotations

import gc
import math
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.feedback.offered import OfferedChoices
from diode_collectors.feedback.records import measurement_from_feedback
from diode_collectors.inductor.adapter import config_of_choice
from diode_collectors.inductor.device import device_uuid
from diode_collectors.inductor.failures import works
from diode_collectors.inductor.graphs import OperandSets
from diode_collectors.inductor.kernel_metrics import as_metrics, metrics_of
from diode_collectors.inductor.running import captured, rotation_of, unload
from diode_collectors.inductor.timer import CpuTimer, GpuTimer
from diode_collectors.sweep.device_state import DeviceMonitor
from diode_collectors.sweep.lane.benchmark import (
    Candidate,
    DeviceLostError,
    TimedAs,
    time_all,
    worst_error_of,
)
from diode_collectors.sweep.lane.calling import compile_and_call, inputs_on
from diode_collectors.sweep.lane.eager import EagerCompiles
from diode_collectors.sweep.lane.exclusive import DeviceLock
from diode_collectors.sweep.lane.memory import check_indexing, check_memory, give_back
from diode_collectors.sweep.lane.shared_kernels import shared_kernels
from diode_collectors.sweep.lane.takeover import (
    allow_tf32,
    leave_products_to_the_autotuner,
    settings_for,
    taken_over,
)
from diode_collectors.sweep.lane.values import Expected, clear, give_values, reference_for
from diode_collectors.sweep.plan import recorded_space
from diode_store.candidates.operands import has_whole_rows
from diode_store.ops import OPS
from diode_store.ops.inputs import with_values_of
from diode_store.records import Outcome, Source, Timing, TimingMethod
from diode_store.values.units import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_collectors.inductor.kernel_metrics import Told
    from diode_collectors.inductor.timer import Timer
    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.device_state import DeviceSample
    from diode_collectors.sweep.lane.shared_source import SharedSource
    from diode_store.records import KernelConfig, Measurement

LAUNCH_NOT_HIDDEN = "launch_not_hidden"
"""Flag of a measurement with a launch that came later than the sleep that should hide it."""
FINALS = "finals"
"""Key of a measurement's ``extra`` for the result of the finals, as in ``Finals``."""
SHARED = "shared_kernels"
"""Key of a measurement's ``extra`` for Triton kernels with sizes as arguments, which other problems share."""
_SAMPLE_EVERY = 50


class _EnoughError(Exception):
    """Ends a compile whose record is made."""


class LostConfigError(Exception):
    """A kernel made the device unusable for this process."""

    def __init__(self, config: KernelConfig, message: str) -> None:
        super().__init__(message)
        self.config = config


@dataclass(frozen=True)
class MeasuringOptions:
    """Options for all problems of a process."""

    device: str
    space: SearchSpace
    sweep_id: str
    seed: int
    include_tma: bool
    mode: str
    lock_folder: Path
    """Folder in which all sweeps of the host find the locks of its devices."""
    benchmark_core: int | None = None
    """Core reserved for benchmarking."""
    root_pid: int | None = None
    """Process that started this sweep; None for this one."""
    contexts: int = 1
    """Number of processes of this sweep that use the device."""
    before: frozenset[int] | None = None
    """Pids that used the device before any of them; None if not looked up."""
    write_flush: bool = False
    """Time a GPU behind a flush that writes, as in the first measurements that shipped; see ``GpuTimer``."""
    guide: Guide | None = None
    """Kernels that a guided search space begins with."""
    share_kernels: bool = False
    """Time problems with kernels that all problems of a kind share."""


@dataclass
class Measured:
    """The result of one problem."""

    measurement: Measurement | None = None
    silent: str | None = None
    """Reason that there is no measurement, though nothing failed."""
    compile_s: float = 0.0
    wait_s: float = 0.0
    benchmark_s: float = 0.0


class Measuring:
    """Measurement of problems on one device, one after the other, in the thread that made it."""

    def __init__(self, options: MeasuringOptions, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Take Inductor over; ``close`` restores it.

        Args:
            options: Options of the process.
            heartbeat: Function to call now and then while the device is held.
        """
        from diode_collectors.sweep.lane.sampling import SweepChoices

        self._options = options
        self._heartbeat = heartbeat
        self._on_cpu = options.device == "cpu"
        uuid = None if self._on_cpu else device_uuid(options.device)
        self._monitor = DeviceMonitor(uuid, root_pid=options.root_pid, contexts=options.contexts, before=options.before)
        self._timer: Timer | None = None
        self._lock = DeviceLock(options.lock_folder, uuid or "cpu", options.benchmark_core)
        self._offered = OfferedChoices(lambda choices, _offer: self._lists.append(len(choices)))
        self.kernels: Path | None = None
        """Folder of the kernels that problems share; None if each has its own."""
        self.choices = SweepChoices(options.space, options.seed, options.guide, shares_kernels=options.share_kernels)
        self._stack = ExitStack()
        settings = settings_for(options.space, on_cpu=self._on_cpu, include_tma=options.include_tma)
        self._stack.enter_context(taken_over(self, settings))
        if self._on_cpu:
            leave_products_to_the_autotuner()
        self._eager = EagerCompiles()
        self._stack.enter_context(self._eager.installed())
        self._offered.register()
        self._stack.callback(self._offered.unregister)
        self._stack.callback(self._monitor.close)

    def close(self) -> None:
        """Restore Inductor."""
        self._stack.close()

    def is_usable(self) -> bool:
        """True if the device still works for this process: after some errors every call fails."""
        return self._timer is None or works(self._timer)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def measure(self, problem: SweepProblem, excluded: Mapping[KernelConfig, Outcome] | None = None) -> Measured:
        """Return the measurement of ``problem``, or the reason that there is none.

        Args:
            problem: Problem to measure.
            excluded: Configs not to try again, with the outcomes of trying them.

        Raises:
            HardwareError: the problem does not fit into the device's memory, or kernels would read beyond its matrices.
            LostConfigError: a kernel broke the device; this process cannot go on.
            Exception: torch raised it; the next problem may do better.
        """
        self._start(problem, excluded or {})
        try:
            if not self._options.space.is_vendor:
                check_indexing(problem, self._options.device)
            check_memory(problem, self._options.device, self._options.contexts)  # last, because it may wait
            error = self._compile(problem)
            lost = _cause(error, DeviceLostError)
            if lost is not None:
                config = config_of_choice(list(self._timed)[lost.index])
                raise LostConfigError(config, str(lost)) from error
            if error is not None and _cause(error, _EnoughError) is None:
                raise error
        finally:
            self._forget()
        if self._result.measurement is None and self._result.silent is None:
            self._result.silent = self._why_silent()
        return self._result

    def _start(self, problem: SweepProblem, excluded: Mapping[KernelConfig, Outcome]) -> None:
        import torch

        torch.compiler.reset()
        gc.collect()
        give_back(self._options.device, self._options.contexts)
        self._asked, self._excluded = problem, excluded
        self.choices.excluded, self.choices.asked = excluded, problem.problem()
        self._lists: list[int] = []
        self._timed: dict[Any, Candidate] = {}
        self._samples: list[DeviceSample] = []
        self._late_launches = 0
        self._timed_as = TimedAs(TimingMethod(), None)
        self._result = Measured()
        self._started = time.monotonic()
        allow_tf32(problem, on_cpu=self._on_cpu)

    def _compile(self, problem: SweepProblem) -> Exception | None:
        """Return the exception that ended the compile, at best ``_EnoughError``; raising would keep cache files."""
        import torch
        from torch._inductor.utils import fresh_cache

        asked, inputs = problem.problem(), inputs_on(problem, self._options.device)
        # In fp32 ATen is as fast without oneDNN. In any other dtype it is so slow without oneDNN that its times would
        # mean nothing.
        keep_onednn = problem.dtype != "float32" and torch.backends.mkldnn.enabled
        with fresh_cache(), self._sharing(), torch.backends.mkldnn.flags(enabled=keep_onednn):
            try:
                compile_and_call(asked, inputs, self._compile_options())
            except Exception as error:  # noqa: BLE001 - looked at by the caller
                return error
        return None

    def _compile_options(self) -> dict[str, Any]:
        """Return the options of the mode without coordinate descent, which turns a product with a vector into a sum."""
        from torch._inductor import list_mode_options

        return {**list_mode_options(self._options.mode), "coordinate_descent_tuning": False}

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        """Share kernels with other problems, if there is a folder for them and the problem's kind allows it."""
        self._shared: list[SharedSource] = []
        if self.kernels is None or not (self._asked.entry.is_standard and has_whole_rows(self._asked)):
            yield
        else:
            with shared_kernels(self.kernels) as self._shared:
                yield

    def _forget(self) -> None:
        """Release kernels and tensors, whose memory the next problems need."""
        for choice in self._timed:
            unload(choice)
        self._timed = {}
        self._eager.forget()
        self.choices.excluded = ()

    def _why_silent(self) -> str:
        if self._lists:
            return "Inductor had one choice only"
        return "Inductor turned it into something that it does not autotune"

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """Hold the device for this process alone."""
        compiled = time.monotonic()
        with self._lock:
            began = time.monotonic()
            gc.disable()  # a collection in the middle of a launch takes longer than the sleep that hides it
            try:
                yield
            finally:
                gc.enable()
                self._result.compile_s, self._result.wait_s = compiled - self._started, began - compiled
                self._result.benchmark_s = time.monotonic() - began

    def offered(self, choices: list[Any]) -> list[Any]:
        """Stand in for the list of an op that no choices handler sees."""
        return self.choices.offered(choices)

    def grouped(self, configs: list[Any]) -> list[Any]:
        """Choose among the configs of a grouped product."""
        return self.choices.grouped(configs)

    def benchmark(self, cache: Any, choices: Sequence[Any], tensors: Any) -> dict[Any, float]:
        """Stand in for Inductor's loop over the choices, and return milliseconds."""
        timer = self._timer = self._timer or self._new_timer()
        late_before = timer.late_launches
        self._prepared = 0
        kinds = [tensors.get_benchmark_tensors(is_vendor).unpack() for is_vendor in (True, False)]
        for inputs, _ in kinds:
            give_values(self._asked.problem(), inputs)
        reference = reference_for(self._asked.problem(), kinds[-1][0])
        sets = OperandSets([tensor for inputs, output in kinds for tensor in (*inputs, output)])
        self._timed = {choice: self._candidate(cache, choice, tensors, reference, sets) for choice in choices}
        self._timed_as = time_all(list(self._timed.values()), timer, seed=self._options.seed)
        self._samples.append(self._monitor.sample())
        self._late_launches = timer.late_launches - late_before
        milliseconds = {
            choice: candidate.median_us / US_PER_MS if candidate.outcome is Outcome.OK else float("inf")
            for choice, candidate in self._timed.items()
        }
        if milliseconds and not any(map(math.isfinite, milliseconds.values())):
            # Inductor gives up when nothing ran, before it reports anything; the record has the outcomes anyway.
            milliseconds[next(iter(milliseconds))] = 1.0
        return milliseconds

    def _new_timer(self) -> Timer:
        return CpuTimer() if self._on_cpu else GpuTimer(write_flush=self._options.write_flush)

    def _candidate(self, cache: Any, choice: Any, tensors: Any, reference: Expected, sets: OperandSets) -> Candidate:
        is_vendor = bool(cache._is_extern(choice))  # noqa: SLF001 - how Inductor itself marks it
        inputs, output = tensors.get_benchmark_tensors(is_vendor).unpack()

        def prepare() -> Callable[[], object]:
            """Return a function that launches the kernel on cleared output."""
            self._heartbeat()
            if len(self._samples) * _SAMPLE_EVERY <= self._prepared:
                self._samples.append(self._monitor.sample())
            self._prepared += 1
            clear(output, is_vendor=is_vendor)
            return captured(choice, lambda: cache.benchmark_choice(choice, tensors))

        return Candidate(
            choice.name,
            is_vendor,
            prepare,
            lambda: reference.error_of(output, is_vendor=is_vendor),
            rotation=rotation_of(choice, [*inputs, output], sets),
            worst_error=worst_error_of(self._asked.shape),
        )

    def on_feedback(self, timings: Any, name: str, input_nodes: Any, choices: Any) -> None:
        """Make the record of what was timed, and end the compile."""
        if name not in OPS:
            self._result.silent = f"Inductor made another op of it: {name}"
            raise _EnoughError
        offer = self._offered.of(timings)
        measurement = measurement_from_feedback(
            timings,
            name,
            input_nodes,
            choices,
            lost=offer.lost(timings) if offer else (),
            timing_of=lambda choice, config, _ms: self._timed[choice].timing(config),
            source=Source.SWEEP,
            sweep_id=self._options.sweep_id,
            sample_seed=self._options.seed,
            search_space=recorded_space(self._options.space, include_tma=self._options.include_tma),
            timing_method=self._timed_as.method,
            family=self._asked.family,
            extra=self._extra(),
            device_state=self._monitor.summary(self._samples),
            flags=self._flags(),
        )
        # Only the sweep knows the routing and the mask that it put in place of Inductor's.
        measurement = replace(
            measurement,
            problem=with_values_of(measurement.problem, self._asked.problem()),
            metrics=as_metrics((timing.config for timing in measurement.timings), self._told()),
        )
        if measurement.problem.key == self._asked.problem().key:
            self._result.measurement = self._with_excluded(measurement)
        else:
            self._result.silent = f"Inductor made another problem of it: {measurement.problem.shape}"
        raise _EnoughError

    def _extra(self) -> dict[str, Any]:
        finals = self._timed_as.finals
        return ({FINALS: asdict(finals)} if finals else {}) | ({SHARED: True} if self._shared else {})

    def _told(self) -> dict[KernelConfig, Told]:
        ran = (Outcome.OK, Outcome.WRONG_RESULT)
        timed = [choice for choice, each in self._timed.items() if not each.is_vendor and each.outcome in ran]
        return {config_of_choice(choice): told for choice in timed if (told := metrics_of(choice))}

    def _flags(self) -> tuple[str, ...]:
        flags = self._monitor.flags(self._samples)
        return (*flags, LAUNCH_NOT_HIDDEN) if self._late_launches else flags

    def _with_excluded(self, measurement: Measurement) -> Measurement:
        known = {timing.config for timing in measurement.timings}
        missing = [Timing(config, None, outcome) for config, outcome in self._excluded.items() if config not in known]
        return measurement.with_timings((*measurement.timings, *missing)) if missing else measurement


def _cause(error: BaseException | None, kind: type[Any]) -> Any:
    """Return the exception of ``kind`` that ``error`` is or comes from, or None."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error
