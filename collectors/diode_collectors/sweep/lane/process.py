"""A process of a sweep: it measures the problems it is sent, one at a time, and spools the records itself.

``lanes`` starts it and sends it ``LaneSettings``, then problems. It ends with the sweep. What it reports as done is on
the disk.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.device import use_torchs_assembler
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.spool.writer import SpoolWriter
from diode_collectors.sweep.cores import workers_for
from diode_collectors.sweep.plan import ProblemResult
from diode_store.errors import HardwareError, SpoolError, SpoolFullError, first_line
from diode_store.records import Outcome
from diode_store.system.private_folder import MARK

if TYPE_CHECKING:
    from diode_collectors.sweep.lane.measuring import Measured, Measuring
    from diode_store.processes.parent import Parent
    from diode_store.records import Measurement

log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0
_ROOM_RETRY_S = 1.0
_POOL_TIMEOUT_S = 300
KERNELS = "kernels"
"""Name of the folder of shared kernels. The lanes' own folders beside it end in numbers."""
_WARM_UP = SweepProblem("mm", 64, 128, 128)
_MOST_RESIDENT_BYTES = 12 * 2**30
_REMOVE = (
    'sleep 0.2; rm -rf -- "$0"; ls -d "$1"/*[0-9] >/dev/null 2>&1 || rm -rf -- "$1/$2"; '
    f'rmdir -- "$1" && rm -f -- "$1{MARK}"'
)
"""Shell script with which the last lane removes the shared kernels."""


@dataclass(frozen=True)
class LaneSettings:
    """The settings that a lane gets at its start."""

    device: str
    """``cuda:0`` or ``cpu``; the process sees one GPU of the host."""
    label: str
    """Name of the device in the sweep's messages."""
    spool: str
    sweep_id: str
    search_space: str
    guide: str | None
    seed: int
    include_tma: bool
    write_flush: bool
    mode: str
    chunk_size: int
    spool_bytes: int
    cores: list[int]
    """Cores that compile."""
    benchmark_core: int | None
    """Core that only benchmarks."""
    root_pid: int
    contexts: int
    """Number of the sweep's processes on the device."""
    before: list[int] | None
    """Processes on the device before the sweep began."""
    lock_folder: str
    """Folder of device locks, shared by all sweeps of the host."""
    folder: str
    """Folder for files that only the sweep needs."""
    kernels: str | None
    """Folder of shared kernels, by generation; None if each problem has its own."""


class Lane:
    """Measures the problems it receives until it is stopped."""

    def __init__(self, settings: LaneSettings, parent: Parent) -> None:
        self._settings = settings
        self._parent = parent
        self._writer = SpoolWriter(settings.spool, max_bytes=settings.spool_bytes)
        self._since_seal = 0
        self._beaten_at = 0.0
        self._at_the_spool = threading.Lock()
        self._kernels: Path | None = None
        """Folder of shared kernels; None if each problem has its own."""

    def run(self) -> None:
        """Report ready, and serve."""
        os.sched_setaffinity(0, self._settings.cores)
        self._kernels = self._shared_kernels()
        with self._measuring() as measuring:
            if self._settings.device != "cpu":
                _warm_up(measuring)
                # Collections need not visit the objects that torch keeps for good, which takes a good part of a second.
                gc.collect()
                gc.freeze()
            self._say_ready()
            while (order := self._parent.receive()) is not None:
                problem, excluded, generation = order
                measuring.kernels = self._kernels and self._kernels / str(generation)
                result = self._measure(measuring, problem, excluded)
                tired = not measuring.is_usable() or _resident_bytes() > _MOST_RESIDENT_BYTES
                self._send(type="result", result=result, tired=tired)
        self._writer.close()

    def leave(self) -> None:
        """End this process and all that it started. Spooled records are safe and sealed; no more are added.

        To be called when the sweep is gone: then nothing else removes this process's files.
        """
        self._at_the_spool.acquire()  # never released: a measurement without its files must not be recorded
        with contextlib.suppress(SpoolError):
            self._writer.close()
        folder = Path(self._settings.folder)
        # Another process removes the folder after this one, since running compiles still leave files there.
        with contextlib.suppress(OSError):
            subprocess.Popen(  # noqa: S603 - our own script and folders
                ["/bin/sh", "-c", _REMOVE, folder, folder.parent, KERNELS],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        if os.getpgrp() == os.getpid():  # the group has its compilers and compile workers too
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    def _shared_kernels(self) -> Path | None:
        """Return the folder of shared kernels; None if there is none, or if kernels of this torch cannot be shared."""
        if self._settings.kernels is None:
            return None
        import torch

        from diode_collectors.sweep.lane.shared_kernels import can_share

        if can_share():
            return Path(self._settings.kernels)
        told = f"torch {torch.__version__} writes its kernels otherwise, so each problem has its own"
        self._send(type="note", message=f"--share-kernels: {told}; leave the option out")
        return None

    def _measuring(self) -> Measuring:
        from diode_collectors.problems.guide import read_guide
        from diode_collectors.problems.search_space import SearchSpace
        from diode_collectors.sweep.lane.measuring import Measuring, MeasuringOptions

        said = self._settings
        space = SearchSpace.parse(said.search_space)
        if said.device != "cpu":
            _start_compile_workers(1 if space.is_vendor else workers_for(len(said.cores), said.contexts))
        options = MeasuringOptions(
            device=said.device,
            space=space,
            guide=None if said.guide is None else read_guide(Path(said.guide)),
            share_kernels=self._kernels is not None,
            sweep_id=said.sweep_id,
            seed=said.seed,
            include_tma=said.include_tma,
            write_flush=said.write_flush,
            mode=said.mode,
            lock_folder=Path(said.lock_folder),
            benchmark_core=said.benchmark_core,
            root_pid=said.root_pid,
            contexts=said.contexts,
            before=None if said.before is None else frozenset(said.before),
        )
        return Measuring(options, self._heartbeat)

    def _say_ready(self) -> None:
        from diode_collectors.inductor.device import detect_environment, detect_hardware

        hardware = detect_hardware(self._settings.device)
        if hardware is None:
            raise HardwareError(f"nothing is known of the device {self._settings.label}")
        self._send(type="ready", hardware=hardware, environment=detect_environment())

    def _measure(self, measuring: Measuring, problem: SweepProblem, excluded: dict[Any, Outcome]) -> ProblemResult:
        from diode_collectors.sweep.lane.measuring import LostConfigError

        try:
            measured = measuring.measure(problem, excluded)
            if measured.measurement is not None:
                self._spool(measured.measurement)
        except LostConfigError as error:
            self._send(type="lost", config=error.config, error=first_line(error))
            self._end()
        except SpoolError as error:
            self._send(type="fatal", error=str(error))
            self._end()
        except Exception as error:  # Inductor raises anything; the next problem may do better
            log.exception("%s", problem)
            return ProblemResult(problem, self._settings.label, error=f"{type(error).__name__}: {_said_by(error)}")
        return _result(problem, self._settings.label, measured)

    def _spool(self, measurement: Measurement) -> None:
        """Put a record on the disk, waiting while the spool is at its limit.

        Raises:
            SpoolError: the disk is full, or the spool cannot be written.
        """
        told = False
        while not self._is_taken(measurement):
            if not told:
                self._send(
                    type="note", message=f"waiting for room in the spool {self._settings.spool}; run diode-ingest"
                )
            told = True
            time.sleep(_ROOM_RETRY_S)
            self._heartbeat()

    def _is_taken(self, measurement: Measurement) -> bool:
        """Put a record on the disk, unless the spool is at its limit."""
        with self._at_the_spool:
            try:
                self._writer.append(measurement)
            except SpoolFullError as error:
                if isinstance(error.__cause__, OSError):  # the disk is full, and ingesting may not empty it
                    raise
                self._writer.seal()  # only sealed records can be ingested
                self._since_seal = 0
                return False
            self._since_seal += 1
            if self._since_seal < self._settings.chunk_size:
                self._writer.sync()
            else:
                self._writer.seal()
                self._since_seal = 0
            return True

    def _heartbeat(self) -> None:
        now = time.monotonic()
        if now - self._beaten_at > _HEARTBEAT_S:
            self._beaten_at = now
            self._send(type="alive")

    def _send(self, **message: Any) -> None:
        self._parent.send(message)

    def _end(self) -> None:
        """Give up: what is spooled is safe, and this process may be unable to do anything else."""
        with contextlib.suppress(SpoolError):
            self._writer.close()
        os._exit(1)


def _result(problem: SweepProblem, device: str, measured: Measured) -> ProblemResult:
    timings = measured.measurement.timings if measured.measurement else ()
    return ProblemResult(
        problem,
        device,
        timings=len(timings),
        failures=sum(timing.outcome is not Outcome.OK for timing in timings),
        estimates=sum(timing.is_estimate for timing in timings),
        flags=measured.measurement.flags if measured.measurement else (),
        compile_s=measured.compile_s,
        wait_s=measured.wait_s,
        benchmark_s=measured.benchmark_s,
        silent=measured.silent,
    )


def _said_by(error: BaseException) -> str:
    """Return the first line of the innermost error: Inductor wraps what happened in errors of its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _warm_up(measuring: Measuring) -> None:
    """Have Inductor, Triton and each compile worker load what they need before anything is timed."""
    try:
        measuring.measure(_WARM_UP)
    except Exception as error:  # noqa: BLE001 - whatever it is, a real problem will fail with it too
        log.warning("the warm-up failed: %s", error)


def _start_compile_workers(count: int) -> None:
    """Start the compile workers now, so that the first problem compiles as fast as the others."""
    import torch._inductor.config as inductor_config
    from torch._inductor.async_compile import AsyncCompile

    inductor_config.compile_threads = count
    try:
        AsyncCompile.wait_pool_ready(_POOL_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - slower, no worse
        log.warning("compile workers are not ready: %s", error)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def serve(parent: Parent, kind: type[Lane] = Lane) -> None:
    """Serve as a lane of ``kind``."""
    # The sweep handles both signals. A handler of our own, unlike ignoring, is not inherited by our processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    use_torchs_assembler()
    lane = kind(parent.receive(), parent)
    parent.on_gone = lane.leave
    lane.run()
