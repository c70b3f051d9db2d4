"""The plan of a sweep, and the report on its end. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from diode_collectors.spool.writer import DEFAULT_SPOOL_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.already import DoneKey
    from diode_store.records import Environment, Hardware

DEFAULT_MODE = "max-autotune-no-cudagraphs"
DEFAULT_CHUNK_SIZE = 50
MODES = (DEFAULT_MODE, "max-autotune")


@dataclass(frozen=True)
class SweepPlan:
    """Problems to time, the devices, and the way to time them."""

    problems: tuple[SweepProblem, ...]
    spool: Path
    devices: tuple[str, ...]
    """``cuda:0``, ``cuda:1`` … or ``cpu``; each gets one worker."""
    search_space: SearchSpace
    sweep_id: str
    include_tma: bool = True
    """List the persistent-TMA templates too, if the device has TMA."""
    write_flush: bool = False
    """Time on GPUs behind a flush that writes, as in the first measurements that shipped."""
    share_kernels: bool = False
    """Time problems with kernels that all problems of a kind share; see ``lane.shared_source``."""
    kernels: Path | None = None
    """Folder that keeps shared kernels for the next sweep; None keeps them for this sweep only."""
    guide: Path | None = None
    """File with the kernels of each problem that a guided search space begins with."""
    seed: int = 0
    """Seed of random samples of the search space."""
    mode: str = DEFAULT_MODE
    """Mode of ``torch.compile``."""
    chunk_size: int = DEFAULT_CHUNK_SIZE
    """Number of problems after which a worker hands its records over to ``diode-ingest``."""
    time_limit_s: float | None = None
    """Seconds after which no further problem is begun; those under way are finished."""
    lanes: int | None = None
    """Processes for each device, one of which benchmarks while the others compile; None decides by the cores."""
    cores: int | None = None
    """Number of cores for all workers together; None for all that this process may use."""
    done: Collection[DoneKey] = field(default=frozenset(), repr=False)
    """Measurements to skip."""
    memory_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """Memory of each device, if known."""
    before: Mapping[str, frozenset[int] | None] = field(default_factory=dict, repr=False)
    """Processes that used a device before this sweep; see ``device_state.DeviceMonitor.before``."""
    spool_bytes: int = DEFAULT_SPOOL_BYTES

    @property
    def compiles_little(self) -> bool:
        """True if problems find kernels compiled, or there is nothing to compile."""
        return self.share_kernels or self.search_space.is_vendor

    @property
    def recorded_space(self) -> str:
        """Name of the search space in records."""
        return recorded_space(self.search_space, include_tma=self.include_tma)


def recorded_space(space: SearchSpace, *, include_tma: bool) -> str:
    """Return the name of a search space in records; without persistent-TMA templates it is another space."""
    return str(space) if include_tma else f"{space} without TMA"


@dataclass(frozen=True)
class ProblemResult:
    """Result of one problem."""

    problem: SweepProblem
    device: str
    timings: int = 0
    """Recorded choices, including failed ones."""
    failures: int = 0
    """Recorded choices that did not run."""
    estimates: int = 0
    flags: tuple[str, ...] = ()
    compile_s: float = 0.0
    """Seconds from the start until everything was compiled."""
    wait_s: float = 0.0
    """Seconds of waiting for the device."""
    benchmark_s: float = 0.0
    """Seconds of holding the device."""
    silent: str | None = None
    """Reason that Inductor left nothing to time; None if the problem was recorded."""
    error: str | None = None
    """Reason that the problem could not be measured; None if it was."""


@dataclass(frozen=True)
class SweepReport:
    """Report on the end of a sweep."""

    sweep_id: str
    problems: int
    skipped: int = 0
    """Problems that were measured before the sweep."""
    measured: int = 0
    """Problems with a record in the spool."""
    timings: int = 0
    failures: int = 0
    silent: int = 0
    """Problems that Inductor did not autotune: it had only one choice, or made another op of them."""
    failed: int = 0
    """Problems that did not compile or run."""
    not_begun: int = 0
    """Problems left at the time limit, at Ctrl-C or with a full spool."""
    restarts: int = 0
    """Number of times that a process died and was started again."""
    seconds: float = 0.0
    """Seconds from the first problem handed out to the last one done, without the start of torch."""
    interrupted: bool = False
    ended_by: str | None = None
    """Reason for an end before the last problem, in one line; None without any."""

    @property
    def choices_per_s(self) -> float:
        """Choices recorded per second."""
        return self.timings / self.seconds if self.seconds else 0.0


class SweepListener(Protocol):
    """Follower of a sweep, in the process and thread that called ``run_sweep``."""

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:
        """Handle a device whose worker is ready."""

    def on_begin(self, total: int, skipped: int) -> None:
        """Handle the start, with the numbers of problems to time and of those already measured."""

    def on_result(self, result: ProblemResult) -> None:
        """Handle a problem that is done."""

    def on_note(self, message: str) -> None:
        """Handle a note for people, in one line."""


class SilentListener:
    """A listener that does nothing."""

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:
        """Ignore the device."""

    def on_begin(self, total: int, skipped: int) -> None:
        """Ignore the start."""

    def on_result(self, result: ProblemResult) -> None:
        """Ignore the result."""

    def on_note(self, message: str) -> None:
        """Ignore the note."""
