"""Describe this process's device as ``Hardware`` and its software as ``Environment``."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diode_store.devices.known import AMD, NVIDIA, with_known_attributes
from diode_store.records import UNKNOWN, Environment, Hardware

_CPU_VENDORS = {"AuthenticAMD": AMD, "GenuineIntel": "intel"}
_DRIVER_VERSIONS = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))
_KILO = 1000


def detect_hardware(device: Any) -> Hardware | None:
    """Return the device model behind a ``torch.device`` or its name; None for an unsupported kind."""
    import torch

    device = torch.device(device)
    if device.type == "cpu":
        return _cpu()
    if device.type == "cuda" and torch.cuda.is_available():
        return _gpu(torch.cuda.current_device() if device.index is None else device.index)
    return None


def device_uuid(device: Any) -> str | None:
    """Return the UUID of a GPU, which distinguishes the machines of a fleet; None for a CPU."""
    import torch

    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(uuid) if uuid is not None else None


@cache
def detect_environment() -> Environment:
    """Return the versions that this process's timings depend on, never the host's name."""
    import torch

    if torch.version.hip:
        compute = f"rocm {torch.version.hip}"
    elif torch.version.cuda:
        compute = f"cuda {torch.version.cuda}"
    else:
        compute = "cpu"
    return Environment(
        torch=str(torch.__version__),
        triton=_triton_version(),
        compute=compute,
        driver=_driver_version(),
        python=platform.python_version(),
        os=f"{platform.system()} {platform.machine()}",
    )


def use_torchs_assembler() -> None:
    """Select the assembler of torch's package for Triton; call this before torch is imported.

    Inductor's compile workers use that assembler by default, but their parent process does not. The parent would
    compile each kernel once more before timing it.
    """
    torch = find_spec("torch")
    ptxas = Path(torch.origin).parent / "bin" / "ptxas" if torch and torch.origin else None
    if "torch" not in sys.modules and ptxas is not None and ptxas.exists():
        os.environ.setdefault("TRITON_PTXAS_PATH", str(ptxas))


@cache
def collector_version() -> str | None:
    """Return the version of the installed torch-diode; None in a bare checkout."""
    try:
        return metadata.version("torch-diode")
    except metadata.PackageNotFoundError:
        return None


@cache
def _gpu(index: int) -> Hardware:
    import torch

    return hardware_of_properties(torch.cuda.get_device_properties(index), is_amd=torch.version.hip is not None)


def hardware_of_properties(properties: Any, *, is_amd: bool) -> Hardware:
    """Return ``torch.cuda.get_device_properties`` as ``Hardware``.

    The table of known devices completes it. For an unknown device the bandwidth is computed from the memory's clock and
    bus width, if this torch reports them.
    """
    told = Hardware(
        vendor=AMD if is_amd else NVIDIA,
        name=properties.name,
        arch=properties.gcnArchName.partition(":")[0] if is_amd else f"sm_{properties.major}{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        l2_bytes=getattr(properties, "L2_cache_size", None) or None,
        shared_memory_per_block_bytes=getattr(properties, "shared_memory_per_block_optin", None) or None,
        memory_bytes=properties.total_memory,
        max_clock_mhz=getattr(properties, "clock_rate", 0) // _KILO or None,
    )
    hardware = with_known_attributes(told)
    if hardware.memory_bandwidth_bytes_per_s is None:
        return replace(hardware, memory_bandwidth_bytes_per_s=_theoretical_bandwidth(properties))
    return hardware


def _theoretical_bandwidth(properties: Any) -> int | None:
    clock_khz = getattr(properties, "memory_clock_rate", 0)
    bus_bits = getattr(properties, "memory_bus_width", 0)
    return 2 * clock_khz * _KILO * bus_bits // 8 or None  # two transfers a clock


@cache
def _cpu() -> Hardware:
    import torch

    fields = _first_processor()
    machine = platform.machine()
    capability = torch.backends.cpu.get_cpu_capability().lower()
    return Hardware(
        vendor=_CPU_VENDORS.get(fields.get("vendor_id", ""), fields.get("vendor_id", UNKNOWN)),
        name=fields.get("model name") or platform.processor() or machine,
        arch=machine if capability == "default" else f"{machine}-{capability}",
        multiprocessors=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _first_processor() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _triton_version() -> str:
    for name in ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return UNKNOWN


def _driver_version() -> str:
    for path in _DRIVER_VERSIONS:
        try:
            return path.read_text().strip()
        except OSError:
            continue
    return UNKNOWN
