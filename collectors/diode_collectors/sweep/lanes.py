"""Start, instruct and end a lane's process for the engine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING

from diode_collectors.sweep.kept_kernels import kernels_folder
from diode_collectors.sweep.lane.process import LaneSettings
from diode_store.errors import HardwareError
from diode_store.processes.child import Child, ChildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.cores import CoreShare
    from diode_collectors.sweep.plan import SweepPlan
    from diode_store.records import KernelConfig, Outcome
    from diode_store.system.private_folder import PrivateFolder

_SERVE = "diode_collectors.sweep.lane.process:serve"
_TAIL_BYTES = 4000
_PATIENCE_S = 5.0


class LaneProcess:
    """One lane of one device."""

    def __init__(
        self, plan: SweepPlan, device: str, share: CoreShare, lanes: int, scratch: PrivateFolder, name: str
    ) -> None:
        self.device = device
        self.hardware = b""
        """Key of the hardware; empty until the lane is ready."""
        self.problem: SweepProblem | None = None
        self.generation = 0
        """Generation of the shared kernels that its problem uses."""
        self.heard_at = time.monotonic()
        self.failed_starts = 0
        self.is_dismissed = False
        self.is_replaced = False
        """True if another lane takes its place."""
        self.is_benchmarking = False
        self._plan, self._share, self._lanes, self._scratch = plan, share, lanes, scratch
        self._folder = scratch.path / name
        self._words = "nothing"
        self.child: Child
        """Its process, once it is started."""

    def start(self) -> None:
        """Start its process and send it its settings.

        Raises:
            HardwareError: no process could be started.
        """
        # Keep only the binary of a kernel: nobody reads the stages of its compilation.
        ours = {"TMPDIR": str(self._folder), "TRITON_STORE_BINARY_ONLY": "1", **_visible(self.device)}
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / "log").open("wb") as said:
                self.child = Child(_SERVE, environment=ours, output=said, fds=(self._scratch.lock,))
        except ChildError as error:
            raise HardwareError(f"{self.device}: a process of the sweep {error}") from error
        except OSError as error:
            raise HardwareError(f"{self.device}: a process of the sweep cannot be started: {error}") from error
        self.child.send(self._settings())

    def measure(self, problem: SweepProblem, excluded: Mapping[KernelConfig, Outcome], generation: int) -> None:
        """Have the lane measure a problem.

        Args:
            problem: the problem.
            excluded: configs to leave out, with the outcome to record for them.
            generation: generation of the shared kernels to use, if problems share kernels.
        """
        self.problem = problem
        self.generation = generation
        self.is_benchmarking = False
        self.heard_at = time.monotonic()
        self.child.send((problem, excluded, generation))

    @property
    def has_nothing(self) -> bool:
        """True if the lane is ready and waits for a problem."""
        return bool(self.hardware) and self.problem is None and not self.is_dismissed

    def dismiss(self) -> None:
        """Tell the lane to finish and exit."""
        self.is_dismissed = True
        self.child.send(None)

    def kill_process(self) -> None:
        """Kill its process, whatever it is doing."""
        self.is_benchmarking = False
        self.child.kill()

    def kill(self) -> None:
        """End the process and those it started, wait until it is gone, and remove its files."""
        self.child.close(_PATIENCE_S)
        self._words = self.last_words()
        shutil.rmtree(self._folder, ignore_errors=True)

    def last_words(self) -> str:
        """Return the last line that the process printed, and the signal that ended it, if one did."""
        if not self._folder.exists():
            return self._words
        lines: list[str] = []
        with contextlib.suppress(OSError), (self._folder / "log").open("rb") as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = said.read().decode(errors="replace").split("\n")
        code = self.child.exit_status
        ended = f" (signal {-code})" if code is not None and code < 0 else ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing") + ended

    def successor(self) -> LaneProcess:
        """Return a lane that takes this one's place."""
        next_one = LaneProcess(self._plan, self.device, self._share, self._lanes, self._scratch, self._folder.name)
        next_one.failed_starts = self.failed_starts
        return next_one

    def _settings(self) -> LaneSettings:
        plan, share, before = self._plan, self._share, self._plan.before.get(self.device)
        return LaneSettings(
            device="cpu" if self.device == "cpu" else "cuda:0",
            label=self.device,
            spool=str(plan.spool.absolute()),
            sweep_id=plan.sweep_id,
            search_space=str(plan.search_space),
            guide=None if plan.guide is None else str(plan.guide.absolute()),
            seed=plan.seed,
            include_tma=plan.include_tma,
            write_flush=plan.write_flush,
            mode=plan.mode,
            chunk_size=plan.chunk_size,
            spool_bytes=plan.spool_bytes,
            cores=list(share.compiling),
            benchmark_core=share.benchmarking,
            root_pid=os.getpid(),
            contexts=self._lanes,
            before=None if before is None else sorted(before),
            lock_folder=tempfile.gettempdir(),
            folder=str(self._folder),
            kernels=str(kernels_folder(plan, self._scratch.path)) if plan.share_kernels else None,
        )


def _visible(device: str) -> dict[str, str]:
    """Return the environment in which a process sees one GPU only."""
    if device == "cpu":
        return {}
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = visible.split(",")[index].strip() if visible else str(index)
    return {"CUDA_VISIBLE_DEVICES": name}
