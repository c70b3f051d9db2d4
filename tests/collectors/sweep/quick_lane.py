"""A lane that makes its measurements up; its process, its pipes and its spool are a sweep's own.

What a problem's name says happens: see ``QuickMeasuring.measure``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.lane import process as lane
from diode_collectors.sweep.lane.measuring import LostConfigError, Measured
from diode_collectors.sweep.plan import recorded_space
from diode_store.records import Measurement, Outcome, Source, Timing
from samples import ENVIRONMENT, H200, MEASURED_AT, triton_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.processes.parent import Parent
    from diode_store.records import Hardware

CONFIGS = [triton_config(16 * i) for i in range(1, 6)]


def is_first_time(word: str) -> bool:
    """Tell whether nobody asked for ``word`` before, in any process of this test."""
    try:
        (Path(os.environ["QUICK_LANE_STATE"]) / word).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Fail if another lane of this test is in here."""
    path = Path(os.environ["QUICK_LANE_STATE"]) / "alone"
    path.touch(exist_ok=False)
    yield
    path.unlink()


def hardware_of(device: str) -> Hardware:
    """Return what a device is: the second GPU is of another model."""
    gib = os.environ.get("QUICK_LANE_GIB")
    hardware = replace(H200, memory_bytes=int(gib) * 2**30) if gib else H200
    return replace(hardware, name="NVIDIA H100") if device == "cuda:1" else hardware


def die(words: str) -> None:
    """End as if the kernel or an administrator had."""
    print(words, flush=True)  # noqa: T201 - a lane's last words
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


class QuickMeasuring:
    """Stands in for ``Measuring``."""

    def __init__(self, settings: lane.LaneSettings, heartbeat: Callable[[], None]) -> None:
        self._settings, self._heartbeat = settings, heartbeat
        self._is_usable = True
        self.kernels: Path | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to leave."""

    def is_usable(self) -> bool:
        """Tell what the last problem left."""
        return self._is_usable

    def measure(self, problem: SweepProblem, excluded: dict[Any, Outcome]) -> Measured:
        """Do as the problem's name says."""
        what, _, argument = problem.name.partition(" ")
        with alone() if what == "alone" else contextlib.nullcontext():
            time.sleep(float(os.environ.get("QUICK_LANE_S", "0.01")))
        if what == "fails":
            raise RuntimeError("lowering failed: no such op\nsecond line")
        if what == "silent":
            return Measured(silent="Inductor had one choice only")
        if what == "dies" and (argument != "once" or is_first_time(str(problem.m))):
            die("Segmentation fault in ptxas")
        if what == "breaks":
            bad = [config for config in CONFIGS[: int(argument)] if config not in excluded]
            if bad:
                raise LostConfigError(bad[0], "CUDA error: an illegal memory access was encountered")
        if what == "breaks-on" and argument == self._settings.label and CONFIGS[0] not in excluded:
            raise LostConfigError(CONFIGS[0], "CUDA error: an illegal memory access was encountered")
        if what == "hangs" and is_first_time("hangs"):
            self._heartbeat()
            time.sleep(600)
        if what == "compiles" and (argument != "once" or is_first_time(what)):  # for ever, in a process of its own
            subprocess.run(["/bin/sleep", "600"], check=False)
        self._is_usable = what != "tires"
        return Measured(self._measurement(problem, excluded), benchmark_s=0.5)

    def _generations(self) -> dict[str, Any]:
        """Use a folder of kernels as Triton does, and return which it is and which are there."""
        if self.kernels is None:
            return {}
        self.kernels.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in self.kernels.parent.iterdir())
        return {"generation": self.kernels.name, "there": there, "of": self.kernels.parent.name}

    def _measurement(self, problem: SweepProblem, excluded: dict[Any, Outcome]) -> Measurement:
        timings = [Timing(c, None, excluded[c]) if c in excluded else Timing(c, 10.0) for c in CONFIGS]
        return Measurement(
            uuid.uuid4().bytes,
            hardware_of(self._settings.label),
            ENVIRONMENT,
            problem.problem(),
            tuple(timings),
            Source.SWEEP,
            MEASURED_AT,
            sweep_id=self._settings.sweep_id,
            search_space=recorded_space(
                SearchSpace.parse(self._settings.search_space), include_tma=self._settings.include_tma
            ),
            sample_seed=self._settings.seed,
            extra=self._generations(),
        )


class QuickLane(lane.Lane):
    """A lane without torch."""

    def _measuring(self) -> Any:
        return QuickMeasuring(self._settings, self._heartbeat)

    def _say_ready(self) -> None:
        if os.environ.get("QUICK_LANE_START") == "never":
            raise RuntimeError("no kernel image is available for execution on the device")
        hardware = hardware_of(self._settings.label)
        self._send(type="ready", hardware=hardware, environment=ENVIRONMENT)

    def _measure(self, measuring: Any, problem: SweepProblem, excluded: dict[Any, Outcome]) -> Any:
        result = super()._measure(measuring, problem, excluded)
        if problem.name == "spools, then dies" and is_first_time("spooled"):
            die("killed between the record and the result")
        return result


def serve(parent: Parent) -> None:
    """Serve as such a lane."""
    lane.serve(parent, QuickLane)
