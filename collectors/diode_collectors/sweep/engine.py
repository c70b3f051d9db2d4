"""A sweep: the engine hands problems to the lanes of each device, so that none is lost or measured twice.

A lane is a process that compiles and benchmarks (``lane``). The few lanes of a device are its worker: one benchmarks,
alone on the device, while the others compile. This process imports no torch. A lane that dies is started again, and its
problem is handed out again unless its record is on disk.
"""

from __future__ import annotations

import os
import selectors
import time
from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from diode_collectors.spool.files import check_writable
from diode_collectors.sweep.already import DoneKey, measured_in_spool
from diode_collectors.sweep.cores import cores_of_rank, lanes_for, share_cores
from diode_collectors.sweep.kept_kernels import KeptKernels, kernels_folder, used_alone
from diode_collectors.sweep.lanes import LaneProcess
from diode_collectors.sweep.plan import ProblemResult, SilentListener, SweepReport
from diode_collectors.sweep.room import next_with_room
from diode_collectors.sweep.scratch import scratch_folder
from diode_store.command_line.stopping import StopSignal
from diode_store.errors import HardwareError, SpoolError
from diode_store.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.cores import CoreShare
    from diode_collectors.sweep.plan import SweepListener, SweepPlan
    from diode_store.records import Environment, Hardware, KernelConfig
    from diode_store.system.private_folder import PrivateFolder

_ATTEMPTS = 3
_MOST_FAILED_STARTS = 2
_MOST_EXCLUDED = 10
_PATIENCE_S = 5.0
_LOOK_EVERY_S = 1.0
STALL_S = 300.0
"""Seconds of silence after which a lane that holds the device counts as hung."""


def run_sweep(plan: SweepPlan, listener: SweepListener | None = None) -> SweepReport:
    """Measure the problems of ``plan`` and spool the records.

    Ctrl-C or SIGTERM ends the sweep. The report says so, and the records so far are in the spool.

    Args:
        plan: Plan of the sweep.
        listener: Listener to call at each event, if given.

    Raises:
        SpoolError: the spool cannot be written.
        HardwareError: no lane could start; the message quotes the last output of one.
        DiodeError: no folder for temporary files can be made, or another sweep uses the folder of kept kernels.
    """
    check_writable(plan.spool)
    with scratch_folder(len(plan.devices)) as scratch, used_alone(plan.kernels), StopSignal() as stop:
        engine = _Engine(plan, listener or SilentListener(), scratch, stop)
        try:
            return engine.run()
        finally:
            engine.close()


class _Engine:
    def __init__(self, plan: SweepPlan, listener: SweepListener, scratch: PrivateFolder, stop: StopSignal) -> None:
        self._plan = plan
        self._listener = listener
        self._scratch = scratch
        self._stop = stop
        self._selector = selectors.DefaultSelector()
        self._selector.register(stop.fd, selectors.EVENT_READ)
        self._lanes: list[LaneProcess] = []
        self._queues: dict[bytes, deque[SweepProblem]] = {}
        self._identity: dict[str, tuple[Hardware, Environment]] = {}
        # By hardware too: what breaks on one model may run on another.
        self._attempts: Counter[tuple[bytes, SweepProblem]] = Counter()
        self._excluded: dict[tuple[bytes, SweepProblem], dict[KernelConfig, Outcome]] = {}
        self._report = SweepReport(plan.sweep_id, 0)
        self._began: float | None = None
        self._given_up: str | None = None
        folder = kernels_folder(plan, scratch.path)
        self._kernels = KeptKernels(folder, len(plan.devices)) if plan.share_kernels else None

    def run(self) -> SweepReport:
        """Work until every problem is done, the time is over, or a signal comes."""
        ended_by = None
        try:
            self._start_lanes()
            while self._lanes and self._stop.name is None:
                self._step()
            self._hear_the_last()
        except KeyboardInterrupt:
            ended_by = "Ctrl-C"
        ended_by = self._stop.name or ended_by
        left = sum(map(len, self._queues.values())) + sum(lane.problem is not None for lane in self._lanes)
        report = self._report
        return replace(
            report,
            not_begun=report.not_begun + left,
            seconds=time.monotonic() - self._began if self._began else 0.0,
            interrupted=ended_by is not None,
            ended_by=ended_by or report.ended_by or (self._given_up if left else None),
        )

    def close(self) -> None:
        """Stop every lane at once. The records that they spooled are safe."""
        for lane in self._lanes:
            lane.child.hang_up()
        for lane in self._lanes:
            lane.kill()
        self._lanes.clear()
        self._selector.close()

    def _hear_the_last(self) -> None:
        """Dismiss the remaining lanes, and count what they have done by then."""
        for lane in self._lanes:
            lane.child.hang_up()
        until = time.monotonic() + _PATIENCE_S
        talking = len(self._lanes)
        self._selector.unregister(self._stop.fd)
        while talking and time.monotonic() < until:
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                messages, is_open = key.data.child.waiting()
                for message in messages:
                    if message["type"] == "result":
                        key.data.problem = None
                        self._count(message["result"])
                if not is_open:
                    self._selector.unregister(key.fileobj)
                    talking -= 1

    def _start_lanes(self) -> None:
        cores = cores_of_rank(sorted(os.sched_getaffinity(0)), os.environ)[: self._plan.cores]
        shares = share_cores(cores, len(self._plan.devices))
        for device, share in zip(self._plan.devices, shares, strict=True):
            count = self._plan.lanes or self._lanes_for(share, device)
            for i in range(count):
                name = f"{device.replace(':', '-')}-{i}"
                self._start(LaneProcess(self._plan, device, share, count, self._scratch, name))

    def _lanes_for(self, share: CoreShare, device: str) -> int:
        plan = self._plan
        # Few lanes keep a device busy with vendor kernels.
        memory_bytes = None if plan.search_space.is_vendor else plan.memory_bytes.get(device)
        return lanes_for(share, device, compiles_little=plan.compiles_little, memory_bytes=memory_bytes)

    def _start(self, lane: LaneProcess) -> None:
        lane.start()
        self._lanes.append(lane)
        self._selector.register(lane.child, selectors.EVENT_READ, lane)

    def _step(self) -> None:
        for key, _ in self._selector.select(_LOOK_EVERY_S):
            if key.data is None:  # not a lane but a signal
                continue
            lane: LaneProcess = key.data
            messages, is_open = lane.child.waiting()
            for message in messages:
                self._take(lane, message)
            if not is_open:
                self._ended(lane)
        self._look_at_the_clock()
        for lane in self._lanes:
            if lane.has_nothing:
                self._give(lane)

    def _take(self, lane: LaneProcess, message: dict[str, Any]) -> None:
        lane.heard_at = time.monotonic()
        kind = message["type"]
        if kind == "ready":
            self._ready(lane, message["hardware"], message["environment"])
        elif kind == "result":
            lane.problem = None
            self._count(message["result"])
            if message["tired"]:
                lane.dismiss()  # another takes its place, without this one's accumulated state
                lane.is_replaced = True
            else:
                self._give(lane)
        elif kind == "lost" and lane.problem is not None:
            task = (lane.hardware, lane.problem)
            excluded = self._excluded.setdefault(task, {})
            excluded[message["config"]] = Outcome.RUNTIME_ERROR
            if len(excluded) <= _MOST_EXCLUDED:
                self._attempts[task] -= 1  # does not count: the next attempt leaves out the config
            self._listener.on_note(f"{lane.problem}: a kernel broke the device and is left out: {message['error']}")
        elif kind == "fatal":
            raise SpoolError(message["error"])
        elif kind == "note":
            self._listener.on_note(message["message"])
        elif kind == "alive":
            lane.is_benchmarking = True

    def _ready(self, lane: LaneProcess, hardware: Hardware, environment: Environment) -> None:
        lane.hardware = hardware.key
        lane.failed_starts = 0
        if lane.device not in self._identity:
            self._identity[lane.device] = (hardware, environment)
            self._listener.on_device(lane.device, hardware, environment)
        if hardware.key not in self._queues:
            self._queue(hardware, environment)
        if self._began is None:
            self._began = time.monotonic()
        self._give(lane)

    def _queue(self, hardware: Hardware, environment: Environment) -> None:
        """Line up problems not measured on this hardware. Devices of one model share the work."""
        asked = {self._key(problem, hardware, environment): problem for problem in self._plan.problems}
        wanted = [problem for key, problem in asked.items() if key not in self._plan.done]
        self._queues[hardware.key] = deque(wanted)
        skipped = len(self._plan.problems) - len(wanted)
        total = self._report.problems + len(self._plan.problems)
        self._report = replace(self._report, problems=total, skipped=self._report.skipped + skipped)
        self._listener.on_begin(len(wanted), skipped)

    def _key(self, problem: SweepProblem, hardware: Hardware, environment: Environment) -> DoneKey:
        plan = self._plan
        what = problem.problem(), hardware, environment, plan.recorded_space, plan.seed
        return DoneKey.of(*what, write_flush=plan.write_flush)

    def _give(self, lane: LaneProcess) -> None:
        """Give a lane its next problem, or dismiss it. The lane waits if every problem waits for other lanes."""
        waiting = self._queues[lane.hardware]
        if not waiting:
            lane.dismiss()
            return
        memory_bytes = self._identity[lane.device][0].memory_bytes
        of_device = [each for each in self._lanes if each.device == lane.device]
        beside = [each.problem for each in of_device if each.problem is not None]
        place = next_with_room(waiting, beside, memory_bytes=memory_bytes, lanes=len(of_device))
        if place is None:
            lane.is_benchmarking = False  # a lane without a problem is silent
            return
        problem = waiting[place]
        del waiting[place]
        self._attempts[lane.hardware, problem] += 1
        lane.measure(problem, self._excluded.get((lane.hardware, problem), {}), self._generation())

    def _generation(self) -> int:
        """Return the generation of shared kernels for the next problem; 0 if none are shared."""
        if self._kernels is None:
            return 0
        used = {lane.generation for lane in self._lanes if lane.problem is not None}
        return self._kernels.generation(self._report.timings, used)

    def _count(self, result: ProblemResult) -> None:
        report = self._report
        was_measured = result.error is None and result.silent is None
        self._report = replace(
            report,
            measured=report.measured + was_measured,
            timings=report.timings + result.timings,
            failures=report.failures + result.failures,
            silent=report.silent + (result.silent is not None),
            failed=report.failed + (result.error is not None),
        )
        self._listener.on_result(result)

    def _ended(self, lane: LaneProcess) -> None:
        """Handle a lane that has ended: it was dismissed, or it died."""
        self._selector.unregister(lane.child)
        self._lanes.remove(lane)
        lane.kill()
        if lane.is_dismissed and not lane.is_replaced:
            return
        if not lane.hardware and self._is_given_up(lane):
            return
        if lane.problem is not None:
            self._mourn(lane, lane.problem)
        if self._queues.get(lane.hardware) or not lane.hardware:
            self._report = replace(self._report, restarts=self._report.restarts + (not lane.is_replaced))
            self._start(lane.successor())

    def _is_given_up(self, lane: LaneProcess) -> bool:
        """Return whether to give up on a lane that did not get ready. The others continue without it."""
        lane.failed_starts += 1
        if lane.failed_starts < _MOST_FAILED_STARTS:
            return False
        self._given_up = f"{lane.device}: no worker could start; it said: {lane.last_words()}"
        if not self._lanes:
            raise HardwareError(self._given_up)
        self._listener.on_note(f"{self._given_up}; the sweep goes on without it")
        return True

    def _mourn(self, lane: LaneProcess, problem: SweepProblem) -> None:
        """Hand out the problem of a dead lane again, unless it is measured or has failed too often."""
        if self._is_spooled(problem, lane):
            self._count(ProblemResult(problem, lane.device))
        elif self._attempts[lane.hardware, problem] < _ATTEMPTS:
            self._queues[lane.hardware].appendleft(problem)
            self._listener.on_note(f"{problem}: its process died and is started again ({lane.last_words()})")
        else:
            error = f"its process died {_ATTEMPTS} times; the last time it said: {lane.last_words()}"
            self._count(ProblemResult(problem, lane.device, error=error))

    def _is_spooled(self, problem: SweepProblem, lane: LaneProcess) -> bool:
        hardware, environment = self._identity[lane.device]
        return self._key(problem, hardware, environment) in measured_in_spool(self._plan.spool)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        limit = self._plan.time_limit_s
        if limit is not None and self._began is not None and now - self._began > limit:
            left = sum(map(len, self._queues.values()))
            if left:
                ended_by = f"the time limit of {limit:g} s"
                self._report = replace(self._report, not_begun=self._report.not_begun + left, ended_by=ended_by)
            for waiting in self._queues.values():
                waiting.clear()
        for lane in self._stalled(now):
            self._listener.on_note(f"{lane.problem}: no sign of life for {STALL_S:g} s; its process is ended")
            lane.kill_process()

    def _stalled(self, now: float) -> Iterator[LaneProcess]:
        return (lane for lane in self._lanes if lane.is_benchmarking and now - lane.heard_at > STALL_S)
