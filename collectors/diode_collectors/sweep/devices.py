"""Devices of a sweep. Another process finds them, so that this one needs no torch and uses no GPU."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.devices.capability import capability_of, capability_text
from diode_store.devices.known import ambiguous, known_devices, narrowed, unknown
from diode_store.errors import HardwareError, SettingsError
from diode_store.exchange.bundled import bundled_devices
from diode_store.processes.child import Child, ChildError, ChildLateError
from diode_store.records import Environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_store.devices.known import DeviceModel
    from diode_store.processes.parent import Parent
    from diode_store.records import Hardware

CPU, CUDA = "cpu", "cuda"
CORES_ELSEWHERE = 16
"""Assumed number of cores of another machine in a plan."""
_NAME = re.compile(r"(cpu|cuda)(?::(\d+))?")
_KIND = re.compile(r"[a-z]+(:\d+)?")
_FIRST_WITH_TMA = 90
_TIMEOUT_S = 120
_WITHOUT_A_GPU = "To time this CPU, give --device cpu; to plan for a GPU elsewhere, --hardware h200 --dry-run"
_TORCH_KINDS = frozenset({"cuda", "cpu", "meta", "mps", "xpu", "hpu", "mtia", "xla"})


@dataclass(frozen=True)
class SweepDevice:
    """One device of this machine."""

    name: str
    """``cuda:0`` or ``cpu``."""
    hardware: Hardware
    environment: Environment
    uuid: str | None = None
    """UUID of a GPU."""

    @property
    def is_cpu(self) -> bool:
        """True for the CPU."""
        return self.name == CPU

    @property
    def capability(self) -> int:
        """Compute capability of an NVIDIA GPU, such as 90 for 9.0; 0 for any other device."""
        return capability_of(self.hardware)

    @property
    def has_tma(self) -> bool:
        """True with a tensor memory accelerator: NVIDIA's GPUs from Hopper on."""
        return self.capability >= _FIRST_WITH_TMA

    def has_kernels(self, problem: SweepProblem) -> bool:
        """Return whether Inductor has kernels of the problem's op to choose from on this device."""
        return problem.entry.is_standard if self.is_cpu else self.capability >= problem.entry.capability

    def fits(self, problem: SweepProblem) -> bool:
        """Return whether the device has enough memory for a problem, or unknown memory."""
        memory_bytes = self.hardware.memory_bytes
        return memory_bytes is None or problem.needed_bytes(on_cpu=self.is_cpu) <= memory_bytes


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the names in ``cpu``, ``cuda``, ``cuda:N`` or a comma list, each once.

    Raises:
        SettingsError: a name is not a device to sweep on, or the names do not go together.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if _NAME.fullmatch(name) is None or name.startswith(f"{CPU}:"):
            kind = name.partition(":")[0]
            if kind in _TORCH_KINDS - {CPU, CUDA} and _KIND.fullmatch(name):
                raise SettingsError(f"a sweep runs on cuda or cpu, not on {kind}")
            raise SettingsError(f"unknown device {name!r}; expected cuda, cuda:N or cpu")
    if not names:
        raise SettingsError("--device names no device; expected cuda, cuda:N or cpu")
    if CPU in names and len(names) > 1:
        raise SettingsError("a sweep runs on GPUs or on the CPU, not on both; run it twice")
    return names


def find_devices(names: Sequence[str] | None) -> tuple[SweepDevice, ...]:
    """Return the devices of these names, or all GPUs.

    Args:
        names: Names as ``parse_devices`` returns them; ``cuda`` is every GPU. The CPU never replaces a GPU.

    Raises:
        HardwareError: a named device or any GPU is missing, or torch cannot be used; the message gives the reason.
    """
    names = names or (CUDA,)
    found, why_none = _ask(CPU if CPU in names else CUDA)
    if not found:
        raise HardwareError(f"no GPU found: {why_none}. {_WITHOUT_A_GPU}")
    wanted: dict[str, SweepDevice] = {}
    for name in names:
        matching = [one for one in found if name in {one.name, CUDA}]
        if not matching:
            raise HardwareError(f"no device {name!r}: torch sees {', '.join(one.name for one in found)}")
        wanted.update({one.name: one for one in matching})
    return tuple(wanted.values())


def device_elsewhere(name: str, *preferences: Iterable[DeviceModel]) -> tuple[SweepDevice, list[str]]:
    """Return a known device to plan for on another machine, and the other devices of this name.

    Its environment is unknown. Of several devices of one architecture it is the one with the least memory, so that its
    problems fit the others.

    Args:
        name: Alias, name, or first words of a name.
        preferences: Collections to choose from if several match, the most important first. The devices of the bundled
            measurements come last.

    Raises:
        HardwareError: no known device has this name, or several of different architectures have it. The message lists
            them.
    """
    matching = narrowed(known_devices(name), *preferences, bundled_devices())
    found = sorted(matching, key=lambda known: known.memory_bytes or 0)
    if not found:
        raise unknown(name)
    if len({known.arch for known in found}) > 1:
        raise ambiguous(name, found)
    return SweepDevice(f"{CUDA}:0", found[0], Environment()), [known.name for known in found[1:]]


def devices_of_rank(devices: tuple[SweepDevice, ...], environment: Mapping[str, str]) -> tuple[SweepDevice, ...]:
    """Return the visible GPUs that this process works on: all, or under ``torchrun`` one for each process.

    Args:
        devices: All GPUs, or the CPU. A single device is taken whatever its number, since a launcher may show each
            process only its own.
        environment: Variables ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE`` of ``torchrun``.

    Raises:
        SettingsError: the variables are not numbers.
        HardwareError: there is no such GPU.
    """
    rank, size = environment.get("LOCAL_RANK"), environment.get("LOCAL_WORLD_SIZE")
    if rank is None or size is None or len(devices) == 1:
        return devices
    if not (rank.isdecimal() and size.isdecimal()):
        raise SettingsError(
            f"LOCAL_RANK is {rank!r} of LOCAL_WORLD_SIZE {size!r}, which are not numbers; give --device"
        )
    if int(size) <= 1:
        return devices
    name = f"{CUDA}:{int(rank)}"
    mine = tuple(device for device in devices if device.name == name)
    if not mine:
        raise HardwareError(
            f"LOCAL_RANK {rank} has no GPU of its own: there are {len(devices)}; start no more processes per host, "
            "or give --device"
        )
    return mine


def users_of(devices: Sequence[SweepDevice]) -> dict[str, frozenset[int] | None]:
    """Return the pids with a context on each GPU; None if they cannot be seen."""
    from diode_collectors.sweep.device_state import DeviceMonitor

    found = {}
    for device in devices:
        if device.uuid is not None:
            with DeviceMonitor(device.uuid) as monitor:
                found[device.name] = monitor.before
    return found


def with_kernels(
    problems: Sequence[SweepProblem], devices: Sequence[SweepDevice], *, is_vendor: bool = False
) -> tuple[list[SweepProblem], str | None]:
    """Return the problems whose ops have kernels to choose from on every device, and a note on the others.

    Args:
        problems: the problems.
        devices: the devices.
        is_vendor: True if only vendor kernels are to be timed, which not every op has.

    Raises:
        HardwareError: no problem is left; the message names what the ops need.
    """

    def why_not(problem: SweepProblem) -> str | None:
        if not all(device.has_kernels(problem) for device in devices):
            return f"{problem.op} needs {_capability_text(problem.entry.capability)}"
        return f"{problem.op} has no vendor kernel" if is_vendor and not problem.entry.vendors else None

    reasons = [why_not(problem) for problem in problems]
    kept = [problem for problem, why in zip(problems, reasons, strict=True) if why is None]
    needs = " and ".join(dict.fromkeys(filter(None, reasons)))
    if not needs:
        return kept, None
    where = " and ".join(dict.fromkeys(device.hardware.name for device in devices))
    if not kept:
        raise HardwareError(f"nothing can be timed on {where}: {needs}")
    return kept, f"{len(problems) - len(kept):,} of {len(problems):,} problems left out on {where}: {needs}"


def _capability_text(capability: int) -> str:
    return f"an NVIDIA GPU of {capability_text(capability)}" if capability else "a GPU"


def check_can_be_timed(problems: Sequence[SweepProblem], *, on_cpu: bool) -> None:
    """Check that Inductor will autotune at least one of ``problems``.

    Raises:
        HardwareError: Inductor will time none of them; the message names problems that it would time.
    """
    if not on_cpu or any(p.op == "bmm" or (p.op in {"mm", "addmm"} and p.dtype == "float32") for p in problems):
        return
    if all(problem.op == "baddbmm" for problem in problems):
        raise HardwareError("on a CPU a baddbmm has one kernel only, which leaves nothing to time; use bmm problems")
    raise HardwareError(
        f"on a CPU oneDNN takes mm and addmm in {problems[0].dtype} over, which leaves nothing to time; "
        "use --dtype fp32, or bmm problems"
    )


def _ask(kind: str) -> tuple[list[SweepDevice], str]:
    """Return the CPU or all GPUs, and why there is no GPU."""
    try:
        with Child("diode_collectors.sweep.devices:serve", output=subprocess.DEVNULL) as child:
            found: tuple[list[SweepDevice], str] = child.call(kind, lambda _part: None, _TIMEOUT_S)
    except ChildLateError as error:
        raise HardwareError(f"torch did not name its devices within {_TIMEOUT_S} s; try `nvidia-smi`") from error
    except ChildError as error:
        raise HardwareError(f"the devices cannot be found: the process that asks torch {error}") from error
    return found


def serve(parent: Parent) -> None:
    """Answer which devices torch sees."""
    parent.serve(lambda kind, _say: _found(kind))


def _found(kind: str) -> tuple[list[SweepDevice], str]:
    import torch

    from diode_collectors.inductor.device import detect_environment, detect_hardware, device_uuid

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [CPU] if kind == CPU else [f"{CUDA}:{index}" for index in range(count)]
    environment = detect_environment()
    devices = [
        SweepDevice(name, hardware, environment, device_uuid(name))
        for name in names
        if (hardware := detect_hardware(name)) is not None
    ]
    return devices, "" if devices else _why_no_gpu()


def _why_no_gpu() -> str:
    """Return the reason that torch sees no GPU, and a remedy."""
    import torch

    torch_version = f"torch {torch.__version__}"
    present = _gpus_of_driver()
    if torch.version.cuda is None and torch.version.hip is None:
        if not present:
            return f"{torch_version} is built for the CPU, and the driver shows no NVIDIA GPU"
        return f"{torch_version} is built for the CPU, but there is {present}; install a CUDA build of torch"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}, which hides the GPUs from {torch_version}; unset it"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
    else:
        reason = "it counts none"
    there = f" though there is {present}" if present else ""
    return f"{torch_version} cannot use one{there}: {reason}"


def _gpus_of_driver() -> str:
    """Return the names of the GPUs that NVIDIA's driver shows, comma-separated; empty without the driver."""
    from diode_collectors.inductor.driver import Driver

    return ", ".join(sorted(Driver.ask().gpus))
