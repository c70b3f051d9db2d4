"""State of a GPU during a measurement: clocks, temperature, limits of the clocks, and other processes.

NVML (nvidia-ml-py) reads one GPU by its UUID, whatever CUDA_VISIBLE_DEVICES says. Without NVML, the GPU or a reading of
it, the value is None: unknown, never a guess.

NVML lists the pids of processes with a compute context. In a container these may be the host's pids, or the list may be
empty. ``ForeignProcesses`` says what can be known then.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from diode_store.records import DeviceState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

log = logging.getLogger(__name__)

THROTTLED = "throttled"
FOREIGN_PROCESS = "foreign_process"
CLOCK_UNSTEADY = "clock_unsteady"

GPU_IDLE = 0x1
SW_POWER_CAP = 0x4
HW_SLOWDOWN = 0x8
SW_THERMAL_SLOWDOWN = 0x20
HW_THERMAL_SLOWDOWN = 0x40
HW_POWER_BRAKE_SLOWDOWN = 0x80
REASONS: dict[int, str] = {
    GPU_IDLE: "gpu_idle",
    0x2: "applications_clocks_setting",
    SW_POWER_CAP: "sw_power_cap",
    HW_SLOWDOWN: "hw_slowdown",
    0x10: "sync_boost",
    SW_THERMAL_SLOWDOWN: "sw_thermal_slowdown",
    HW_THERMAL_SLOWDOWN: "hw_thermal_slowdown",
    HW_POWER_BRAKE_SLOWDOWN: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""NVML's bits (``nvmlClocksEventReason*``, ``nvmlClocksThrottleReason*``) and their names in a record."""

_PROTECTIVE = SW_THERMAL_SLOWDOWN | HW_THERMAL_SLOWDOWN | HW_POWER_BRAKE_SLOWDOWN
# NVML's reference: HW slowdown alone "may be also reported during PState or clock change".
_HW_SLOWDOWN_SAMPLES = 2
POWER_CAP_FALL = 0.4
"""Share by which a power cap may hold the SM clock below the other samples.

Datacenter GPUs run large matrix products under their power cap all the time, in a user's program as in a sweep.
Flagging that would leave no large problem. A larger fall means a lowered power limit, or a failing supply.
"""
UNSTEADY_SHARE = 0.1
"""Share of the highest SM clock by which the clock may fall, unless a power cap explains the fall."""
_PROCESSES_EVERY_S = 0.25
_DEEPEST = 100
UNSEEN_BYTES = 256 * 2**20
"""Used memory, beyond that of listed processes, that reveals an unlisted process. A bare context uses more."""


@dataclass(frozen=True)
class DeviceSample:
    """Readings of the GPU at one moment; None for those it does not give."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    reasons: int | None = None
    """NVML's bit mask of the limits of the clocks."""
    foreign_processes: int | None = None


@dataclass(frozen=True)
class ForeignProcesses:
    """Count of other processes than ours, as far as their pids allow.

    If one of our pids is listed, the pids are of our namespace, and every other one is foreign. Otherwise they are of
    another namespace. Then processes from before our first context are foreign. Of later ones, as many may be ours as
    we have contexts; the others are foreign.

    The answer is None if a count of 0 would be a guess. This happens without a list from before our context, with an
    empty list, or if no listed process accounts for memory in use.
    """

    is_ours: Callable[[int], bool]
    """Return whether a pid of our own namespace is one of our processes."""
    contexts: int = 1
    """Number of our processes that may hold a context on the GPU."""
    before: frozenset[int] | None = None
    """Pids listed before we had a context; None if not looked up."""

    def count(self, listed: Mapping[int, int | None] | None, used_bytes: int | None) -> int | None:
        """Return the number of foreign processes with a context; None if unknown.

        Args:
            listed: Bytes that each pid uses, None where NVML does not say. None if nothing could be listed.
            used_bytes: Bytes in use altogether, without the driver's reserve.
        """
        if not listed:
            return None
        ours = sum(map(self.is_ours, listed))
        if ours:
            foreign = len(listed) - ours
        elif self.before is None:
            return None
        else:
            came = len(listed.keys() - self.before)
            foreign = len(listed.keys() & self.before) + max(0, came - self.contexts)
        return None if foreign == 0 and unseen_bytes(listed, used_bytes) > UNSEEN_BYTES else foreign


def descends_from(pid: int, root: int) -> bool:
    """Return whether ``pid`` is the process ``root`` or a descendant of it, by Linux's /proc."""
    for _ in range(_DEEPEST):
        if pid == root:
            return True
        parent = _parent_of(pid)
        if not parent:
            return False
        pid = parent
    return False


def _parent_of(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(status.rpartition(")")[2].split()[1])  # behind the command's name, which may hold anything
    except (OSError, ValueError, IndexError):
        return None


def unseen_bytes(listed: Mapping[int, int | None], used_bytes: int | None) -> int:
    """Return the memory that no listed process accounts for; 0 if unknown."""
    held = [size for size in listed.values() if size is not None]
    if used_bytes is None or len(held) < len(listed):
        return 0
    return max(0, used_bytes - sum(held))


class DeviceMonitor:
    """Reader of one GPU. Its samples are empty if the GPU cannot be read.

    Use it from one thread.
    """

    def __init__(
        self,
        uuid: str | None,
        *,
        root_pid: int | None = None,
        contexts: int = 1,
        before: frozenset[int] | None = None,
    ) -> None:
        """Open the GPU.

        Args:
            uuid: UUID from ``inductor.device.device_uuid``, with or without NVML's ``GPU-``; None for a CPU.
            root_pid: Process that started all of ours; by default this one.
            contexts: Number of our processes that may hold a context on the GPU.
            before: ``before`` of a monitor that was open before our first context. By default it is looked up now, if
                this process is the only one and has no context yet.
        """
        self._nvml: Any = None
        self._handle: Any = None
        self._unsupported: set[str] = set()
        self._foreign_count: int | None = None
        self._next_look = 0.0
        self._max_sm_clock_mhz: int | None = None
        root = os.getpid() if root_pid is None else root_pid
        self._foreign = ForeignProcesses(lambda pid: descends_from(pid, root), contexts, before)
        if uuid is None:
            log.info("device state is not recorded: this is not a GPU with a UUID")
            return
        try:
            self._open(uuid)
        except Exception as error:  # noqa: BLE001 - no NVML, no driver, no such GPU: timing goes on without
            log.warning("clocks, throttling and foreign processes of GPU %s are not recorded: %s", uuid, error)
            self.close()

    @property
    def before(self) -> frozenset[int] | None:
        """Pids with a context before any of our processes had one; None if not looked up in time."""
        return self._foreign.before

    @property
    def is_open(self) -> bool:
        """True if samples have readings."""
        return self._handle is not None

    def close(self) -> None:
        """Shut NVML down; later samples are empty."""
        nvml, self._nvml, self._handle = self._nvml, None, None
        if nvml is not None:
            try:
                nvml.nvmlShutdown()
            except nvml.NVMLError as error:
                log.debug("NVML did not shut down: %s", error)

    def __enter__(self) -> Self:
        """Return the monitor itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def sample(self) -> DeviceSample:
        """Return the GPU's current readings. Takes a fraction of a millisecond and never raises.

        Processes are listed at most four times a second; samples in between repeat the last answer.
        """
        nvml = self._nvml
        if nvml is None:
            return DeviceSample()
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _PROCESSES_EVERY_S
            self._foreign_count = self._foreign.count(self._processes(), self._used_bytes())
        return DeviceSample(
            sm_clock_mhz=self._read("SM clock", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._read("memory clock", nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            temperature_c=self._read("temperature", nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            reasons=self._reasons(),
            foreign_processes=self._foreign_count,
        )

    def summary(self, samples: Sequence[DeviceSample]) -> DeviceState:
        """Return the state to record from ``samples``, which were taken during the measurement."""
        return state_of(samples)

    def flags(self, samples: Sequence[DeviceSample]) -> tuple[str, ...]:
        """Return reasons to distrust the measurement during which ``samples`` were taken; empty if there are none."""
        return flags_of(samples, max_sm_clock_mhz=self._max_sm_clock_mhz)

    def _open(self, uuid: str) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(nvml_uuid(uuid))
        self._max_sm_clock_mhz = self._read("highest clock", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)
        if self.before is None and self._foreign.contexts == 1 and not _may_have_context():
            self._look_before(uuid)

    def _look_before(self, uuid: str) -> None:
        """Record the processes that were there before us."""
        listed = self._processes()
        if listed is None:
            return
        self._foreign = replace(self._foreign, before=frozenset(listed))
        unseen = unseen_bytes(listed, self._used_bytes())
        if unseen > UNSEEN_BYTES:
            text = "GPU %s: %d MiB are in use by processes that cannot be seen from here; timings may suffer"
            log.warning(text, uuid, unseen >> 20)

    def _read(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return one reading. A reading that the GPU does not give is not asked for again."""
        if what in self._unsupported:
            return None
        nvml = self._nvml
        try:
            return call(self._handle, *arguments)
        except nvml.NVMLError as error:
            if error.value in {
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                nvml.NVML_ERROR_NO_PERMISSION,
            }:
                self._unsupported.add(what)
                log.info("this GPU does not tell its %s: %s", what, error)
            return None

    def _reasons(self) -> int | None:
        nvml = self._nvml
        found = self._read("clock events", nvml.nvmlDeviceGetCurrentClocksEventReasons)
        if found is None:  # a driver from before 535
            found = self._read("throttle reasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return found if found is None else int(found)

    def _processes(self) -> dict[int, int | None] | None:
        listed = self._read("processes", self._nvml.nvmlDeviceGetComputeRunningProcesses)
        return None if listed is None else {process.pid: process.usedGpuMemory for process in listed}

    def _used_bytes(self) -> int | None:
        """Return the memory that processes use. Only version 2 of the call leaves out the driver's reserve."""
        memory = self._read("memory", self._nvml.nvmlDeviceGetMemoryInfo, self._nvml.nvmlMemory_v2)
        return None if memory is None else int(memory.used)


def nvml_uuid(uuid: str) -> str:
    """Return a GPU's UUID in NVML's form, which torch gives without ``GPU-``."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def state_of(samples: Sequence[DeviceSample]) -> DeviceState:
    """Return medians of the clocks under load, the highest temperature, all reasons, and the most processes."""
    loaded = _loaded(samples)
    return DeviceState(
        sm_clock_mhz=_median([s.sm_clock_mhz for s in loaded]),
        memory_clock_mhz=_median([s.memory_clock_mhz for s in loaded]),
        temperature_c=max((s.temperature_c for s in samples if s.temperature_c is not None), default=None),
        throttle_reasons=reason_names([s.reasons for s in loaded]),
        foreign_processes=max((s.foreign_processes for s in samples if s.foreign_processes is not None), default=None),
    )


def reason_names(masks: Sequence[int | None]) -> str | None:
    """Return the reasons in any of ``masks``, joined by commas; ``none`` for none, None for no answer."""
    known = [mask for mask in masks if mask is not None]
    if not known:
        return None
    union = 0
    for mask in known:
        union |= mask
    bits = [1 << i for i in range(union.bit_length()) if union >> i & 1]
    return ",".join(REASONS.get(bit, f"bit_{bit:#x}") for bit in bits) or "none"


def flags_of(samples: Sequence[DeviceSample], *, max_sm_clock_mhz: int | None = None) -> tuple[str, ...]:
    """Return reasons to distrust the measurement during which ``samples`` were taken.

    ``throttled``: the GPU protected itself (heat, power brake, HW slowdown), or a power cap held the SM clock too low.
    Too low is more than ``POWER_CAP_FALL`` below the highest of the other samples. If all samples are capped, the GPU's
    highest clock counts.
    ``foreign_process``: another process than ours held a compute context.
    ``clock_unsteady``: the SM clock fell by more than ``UNSTEADY_SHARE`` without a power cap, which would explain it.
    """
    found = []
    if _is_throttled(samples, max_sm_clock_mhz):
        found.append(THROTTLED)
    if any(sample.foreign_processes for sample in samples):
        found.append(FOREIGN_PROCESS)
    clocks = [s.sm_clock_mhz for s in _loaded(samples) if s.sm_clock_mhz is not None]
    capped = any((s.reasons or 0) & SW_POWER_CAP for s in samples)
    if clocks and not capped and min(clocks) < max(clocks) * (1 - UNSTEADY_SHARE):
        found.append(CLOCK_UNSTEADY)
    return tuple(found)


def _is_throttled(samples: Sequence[DeviceSample], max_sm_clock_mhz: int | None) -> bool:
    masks = [sample.reasons or 0 for sample in samples]
    if any(mask & _PROTECTIVE for mask in masks):
        return True
    if sum(bool(mask & HW_SLOWDOWN) for mask in masks) >= _HW_SLOWDOWN_SAMPLES:
        return True
    clocks = [(bool((s.reasons or 0) & SW_POWER_CAP), s.sm_clock_mhz) for s in _loaded(samples)]
    capped = [clock for is_capped, clock in clocks if is_capped and clock is not None]
    free = [clock for is_capped, clock in clocks if not is_capped and clock is not None]
    usual = max(free, default=max_sm_clock_mhz or 0)
    return bool(capped) and statistics.median(capped) < usual * (1 - POWER_CAP_FALL)


def _loaded(samples: Sequence[DeviceSample]) -> Sequence[DeviceSample]:
    """Return the samples under load; all samples if there was none."""
    return [sample for sample in samples if not (sample.reasons or 0) & GPU_IDLE] or samples


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known)) if known else None


def _may_have_context() -> bool:
    """Return whether this process may have a context on a GPU, which torch creates."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
