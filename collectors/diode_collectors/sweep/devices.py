"""Which devices a sweep runs on. Asks another process, so that this one needs no torch and holds no GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from diode_store.errors import HardwareError, SettingsError
from diode_store.records import Environment, Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_collectors.problems.problem import SweepProblem

CPU, CUDA = "cpu", "cuda"
_NAME = re.compile(r"(cpu|cuda)(?::(\d+))?")
_KIND = re.compile(r"[a-z]+(:\d+)?")
_FIRST_WITH_TMA = 90
_TIMEOUT_S = 120
_TORCH_KINDS = frozenset({"cuda", "cpu", "meta", "mps", "xpu", "hpu", "mtia", "xla"})


@dataclass(frozen=True)
class SweepDevice:
    """One device of this machine."""

    name: str
    """``cuda:0`` or ``cpu``."""
    hardware: Hardware
    environment: Environment
    uuid: str | None = None
    """Of a GPU."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is no GPU."""
        return self.name == CPU

    @property
    def has_tma(self) -> bool:
        """Whether it has a tensor memory accelerator: NVIDIA's GPUs from Hopper on."""
        arch = self.hardware.arch.removeprefix("sm_")
        return arch.isdecimal() and int(arch) >= _FIRST_WITH_TMA


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the names in ``cpu``, ``cuda``, ``cuda:N`` or a comma list, each once.

    Raises:
        SettingsError: one of them is no name of a device to sweep on, or they do not go together.
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
    """Return the devices of these names; all GPUs, or the CPU where there is none, if there are no names.

    Args:
        names: as ``parse_devices`` returns them; ``cuda`` is every GPU.

    Raises:
        HardwareError: one is not there, or torch cannot be used.
    """
    told = _ask([CPU] if names is not None and CPU in names else [])
    found = [
        SweepDevice(one["name"], Hardware(**one["hardware"]), Environment(**one["environment"]), one["uuid"])
        for one in told["devices"]
    ]
    if names is None:
        gpus = [device for device in found if not device.is_cpu]
        return tuple(gpus or found)
    wanted: dict[str, SweepDevice] = {}
    for name in names:
        matching = [one for one in found if one.name == name or (name == CUDA and not one.is_cpu)]
        if not matching:
            raise HardwareError(
                f"no device {name!r}: torch {told['torch']} sees no such GPU; --device cpu works without"
            )
        wanted.update({one.name: one for one in matching})
    return tuple(wanted.values())


def devices_of_rank(devices: tuple[SweepDevice, ...], environment: Mapping[str, str]) -> tuple[SweepDevice, ...]:
    """Return which of the GPUs that a process sees it works on: of several under ``torchrun``, one each.

    Args:
        devices: all GPUs, or the CPU; one alone is taken whatever its number, since a launcher may show each process
            its own only.
        environment: where ``torchrun`` says ``LOCAL_RANK`` and ``LOCAL_WORLD_SIZE``.

    Raises:
        SettingsError: these mean nothing.
        HardwareError: there is no such GPU.
    """
    rank, size = environment.get("LOCAL_RANK"), environment.get("LOCAL_WORLD_SIZE")
    if rank is None or size is None or len(devices) == 1:
        return devices
    if not (rank.isdecimal() and size.isdecimal()):
        raise SettingsError(f"LOCAL_RANK is {rank!r} of LOCAL_WORLD_SIZE {size!r}, which are no numbers; give --device")
    if int(size) <= 1:
        return devices
    name = f"{CUDA}:{int(rank)}"
    mine = tuple(device for device in devices if device.name == name)
    if not mine:
        raise HardwareError(
            f"LOCAL_RANK {rank} has no GPU of its own: there are {len(devices)}; start no more processes a host, "
            "or give --device"
        )
    return mine


def users_of(devices: Sequence[SweepDevice]) -> dict[str, frozenset[int] | None]:
    """Return the pids that hold a context on each GPU; None where that cannot be seen."""
    from diode_collectors.sweep.device_state import DeviceMonitor

    found = {}
    for device in devices:
        if device.uuid is not None:
            with DeviceMonitor(device.uuid) as monitor:
                found[device.name] = monitor.before
    return found


def check_can_be_timed(problems: Sequence[SweepProblem], *, on_cpu: bool) -> None:
    """Make sure that Inductor will autotune at least one of ``problems``.

    Raises:
        HardwareError: none of them; the message says what would be.
    """
    if not on_cpu or any(p.op == "bmm" or (p.op in {"mm", "addmm"} and p.dtype == "float32") for p in problems):
        return
    if all(problem.op == "baddbmm" for problem in problems):
        raise HardwareError("on a CPU a baddbmm has one kernel only, which leaves nothing to time; use bmm problems")
    raise HardwareError(
        f"on a CPU oneDNN takes mm and addmm in {problems[0].dtype} over, which leaves nothing to time; "
        "use --dtype fp32, or bmm problems"
    )


def _ask(arguments: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "diode_collectors.sweep.devices", *arguments]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired as error:
        raise HardwareError(f"torch did not name its devices within {_TIMEOUT_S} s; try `nvidia-smi`") from error
    if asked.returncode:
        said = asked.stderr.strip().rpartition("\n")[2] or f"exit status {asked.returncode}"
        raise HardwareError(f"the devices cannot be found: {said}; a sweep needs a torch that imports")
    found: dict[str, Any] = json.loads(asked.stdout.rpartition("\n")[2] or asked.stdout)
    return found


def _tell(arguments: list[str]) -> None:
    """Print the devices as JSON: the CPU alone if it is asked for or there is no GPU."""
    import torch

    from diode_collectors.inductor.device import detect_environment, detect_hardware, device_uuid

    count = 0 if CPU in arguments or not torch.cuda.is_available() else torch.cuda.device_count()
    names = [f"{CUDA}:{index}" for index in range(count)] or [CPU]
    environment = asdict(detect_environment())
    devices = []
    for name in names:
        hardware = detect_hardware(name)
        if hardware is not None:
            told = {"name": name, "uuid": device_uuid(name), "hardware": asdict(hardware), "environment": environment}
            devices.append(told)
    sys.stdout.write(json.dumps({"torch": str(torch.__version__), "devices": devices}))


if __name__ == "__main__":
    _tell(sys.argv[1:])
