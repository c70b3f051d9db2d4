"""The engine's view of a lane: its process, its pipes, and its current problem."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diode_collectors.sweep.channel import Channel, problem_to_message
from diode_collectors.sweep.kept_kernels import kernels_folder
from diode_collectors.sweep.lane.process import LaneSettings
from diode_store.errors import HardwareError

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.cores import CoreShare
    from diode_collectors.sweep.plan import SweepPlan
    from diode_store.private_folder import PrivateFolder

_PROGRAM = ("-m", "diode_collectors.sweep.lane.process")
_TAIL_BYTES = 4000
_PATIENCE_S = 5.0


class LaneProcess:
    """One lane of one device."""

    def __init__(
        self, plan: SweepPlan, device: str, share: CoreShare, lanes: int, scratch: PrivateFolder, name: str
    ) -> None:
        self.device = device
        self.hardware = b""
        """Key of what it runs on; empty until it is ready."""
        self.problem: SweepProblem | None = None
        self.generation = 0
        """Of the kernels that its problem shares."""
        self.heard_at = time.monotonic()
        self.failed_starts = 0
        self.is_dismissed = False
        self.is_replaced = False
        """Whether another is to take its place."""
        self.is_benchmarking = False
        self._plan, self._share, self._lanes, self._scratch = plan, share, lanes, scratch
        self._folder = scratch.path / name
        self._process: subprocess.Popen[bytes] | None = None
        self._words = "nothing"
        self.channel = Channel(-1, -1)

    def start(self) -> None:
        """Start its process and send it its settings.

        Raises:
            HardwareError: no process could be started.
        """
        results, for_lane = os.pipe()
        commands, from_us = os.pipe()
        self.channel = Channel(results, from_us)
        # Of a kernel only what runs is kept: the stages it was compiled through are not read.
        ours = {"TMPDIR": str(self._folder), "TRITON_STORE_BINARY_ONLY": "1", **_visible(self.device)}
        environment = {**os.environ, **ours}
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / "log").open("wb") as said:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, with a number
                    [sys.executable, *_PROGRAM, str(for_lane)],
                    stdin=commands,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    pass_fds=(for_lane, self._scratch.lock),
                    process_group=0,  # its compilers and compile workers end with it
                    env=environment,
                )
        except OSError as error:
            self.channel.close()
            raise HardwareError(f"{self.device}: a process of the sweep cannot be started: {error}") from error
        finally:
            os.close(for_lane)
            os.close(commands)
        self._send(**asdict(self._settings()))

    def measure(self, problem: SweepProblem, excluded: list[tuple[dict[str, Any], str]], generation: int) -> None:
        """Have it measure a problem, by kernels of a generation where problems share them."""
        self.problem = problem
        self.generation = generation
        self.is_benchmarking = False
        self.heard_at = time.monotonic()
        self._send(do="measure", problem=problem_to_message(problem), excluded=excluded, generation=generation)

    @property
    def has_nothing(self) -> bool:
        """Whether it is ready and waits for a problem."""
        return bool(self.hardware) and self.problem is None and not self.is_dismissed

    def dismiss(self) -> None:
        """Tell it to finish and exit."""
        self.is_dismissed = True
        self._send(do="stop")

    def kill_process(self) -> None:
        """End its process, whatever it is doing; its pipe will end."""
        self.is_benchmarking = False
        if self._process is not None:
            self._process.kill()

    def hang_up(self) -> None:
        """Tell it to exit at once and remove its files."""
        self.channel.hang_up()

    def kill(self) -> None:
        """End its process and those it started, wait until it is gone, and tidy up after it."""
        self.channel.close()
        if self._process is not None:
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._words = self.last_words()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    def last_words(self) -> str:
        """Return the last line its process wrote, and how it ended if it has."""
        if not self._folder.exists():
            return self._words
        lines: list[str] = []
        with contextlib.suppress(OSError), (self._folder / "log").open("rb") as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = said.read().decode(errors="replace").split("\n")
        code = self._process.poll() if self._process else None
        ended = f" (signal {-code})" if code is not None and code < 0 else ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing") + ended

    def successor(self) -> LaneProcess:
        """Return a lane that takes this one's place."""
        next_one = LaneProcess(self._plan, self.device, self._share, self._lanes, self._scratch, self._folder.name)
        next_one.failed_starts = self.failed_starts
        return next_one

    def _send(self, **message: Any) -> None:
        # One that is gone is noticed when its pipe ends.
        with contextlib.suppress(BrokenPipeError):
            self.channel.send(**message)

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
    """Return what makes one GPU the only one a process sees."""
    if device == "cpu":
        return {}
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = visible.split(",")[index].strip() if visible else str(index)
    return {"CUDA_VISIBLE_DEVICES": name}
