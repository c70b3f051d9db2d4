"""What a sweep is asked to do, and how it ended. Needs no torch."""

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
    """Which problems are timed where, and how."""

    problems: tuple[SweepProblem, ...]
    spool: Path
    devices: tuple[str, ...]
    """``cuda:0``, ``cuda:1`` … or ``cpu``; each gets one worker."""
    search_space: SearchSpace
    sweep_id: str
    include_tma: bool = True
    """Whether the persistent-TMA templates are listed too, where the device has TMA."""
    write_flush: bool = False
    """Whether GPUs are timed as they were for the first measurements that shipped."""
    share_kernels: bool = False
    """Whether problems are timed by kernels that others of their kind were; see ``lane.shared_source``."""
    kernels: Path | None = None
    """The folder in which such kernels are kept for the next sweep; None keeps them no longer than this one."""
    guide: Path | None = None
    """Which kernels of each problem a guided search space begins with."""
    seed: int = 0
    """What random samples of the search space are drawn with."""
    mode: str = DEFAULT_MODE
    """The mode of ``torch.compile``."""
    chunk_size: int = DEFAULT_CHUNK_SIZE
    """After how many problems a worker hands its records over to ``diode-ingest``."""
    time_limit_s: float | None = None
    """After how many seconds no further problem is begun; those under way are finished."""
    lanes: int | None = None
    """Processes a device, of which one benchmarks while the others compile; None decides by the cores."""
    cores: int | None = None
    """How many cores all workers together may use; None for all that this process may use."""
    done: Collection[DoneKey] = field(default=frozenset(), repr=False)
    """What need not be measured again."""
    memory_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """Of each device, as far as it is known."""
    before: Mapping[str, frozenset[int] | None] = field(default_factory=dict, repr=False)
    """The processes that used a device before this sweep; see ``device_state.DeviceMonitor.before``."""
    spool_bytes: int = DEFAULT_SPOOL_BYTES

    @property
    def compiles_little(self) -> bool:
        """Whether problems find kernels compiled, or there is nothing to compile."""
        return self.share_kernels or self.search_space.is_vendor

    @property
    def recorded_space(self) -> str:
        """What records say of the search space."""
        return recorded_space(self.search_space, include_tma=self.include_tma)


def recorded_space(space: SearchSpace, *, include_tma: bool) -> str:
    """Return what records say of a search space; without persistent-TMA templates it is another one."""
    return str(space) if include_tma else f"{space} without TMA"


@dataclass(frozen=True)
class ProblemResult:
    """What became of one problem."""

    problem: SweepProblem
    device: str
    timings: int = 0
    """Choices that were recorded, those that failed included."""
    failures: int = 0
    """Choices among them that did not run."""
    estimates: int = 0
    flags: tuple[str, ...] = ()
    compile_s: float = 0.0
    """Seconds from the start until everything was compiled."""
    wait_s: float = 0.0
    """Seconds it waited for the device."""
    benchmark_s: float = 0.0
    """Seconds it held the device."""
    silent: str | None = None
    """Why Inductor left nothing to time; None when it was recorded."""
    error: str | None = None
    """Why it could not be measured; None when it was."""


@dataclass(frozen=True)
class SweepReport:
    """How a sweep ended."""

    sweep_id: str
    problems: int
    skipped: int = 0
    """Problems that were already measured."""
    measured: int = 0
    """Problems whose record is in the spool."""
    timings: int = 0
    failures: int = 0
    silent: int = 0
    """Problems that Inductor did not autotune as such: it had one choice only, or made another op of them."""
    failed: int = 0
    """Problems that did not compile or run."""
    not_begun: int = 0
    """Problems left when the time limit, Ctrl-C or a full spool ended it."""
    restarts: int = 0
    """How often a process of it died and was started again."""
    seconds: float = 0.0
    """From the first problem handed out to the last one done; starting torch is not counted."""
    interrupted: bool = False
    ended_by: str | None = None
    """What ended it before the last problem, in one line; None when nothing did."""

    @property
    def choices_per_s(self) -> float:
        """Choices recorded a second."""
        return self.timings / self.seconds if self.seconds else 0.0


class SweepListener(Protocol):
    """Follows a sweep, in the process and thread that called ``run_sweep``."""

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:
        """Take notice of a device whose worker is ready."""

    def on_begin(self, total: int, skipped: int) -> None:
        """Take notice that so many problems are to be timed, and so many are measured already."""

    def on_result(self, result: ProblemResult) -> None:
        """Take notice of a problem that is done."""

    def on_note(self, message: str) -> None:
        """Take notice of something a person may want to know, in one line."""


class SilentListener:
    """A listener that does nothing."""

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:
        """Ignore it."""

    def on_begin(self, total: int, skipped: int) -> None:
        """Ignore it."""

    def on_result(self, result: ProblemResult) -> None:
        """Ignore it."""

    def on_note(self, message: str) -> None:
        """Ignore it."""
