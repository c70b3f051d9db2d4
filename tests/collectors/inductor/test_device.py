"""The device and the software as records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from diode_collectors.inductor import device
from diode_collectors.inductor.adapter import detect_environment, detect_hardware

H200_PROPERTIES = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "L2_cache_size": 62914560,
    "shared_memory_per_block_optin": 232448,
    "total_memory": 150_120_824_832,
    "clock_rate": 1_980_000,
}


def test_hardware_of_a_known_gpu() -> None:
    """The driver's figures, and the published bandwidth that it does not tell."""
    hardware = device.hardware_of_properties(SimpleNamespace(**H200_PROPERTIES), is_amd=False)
    assert (hardware.vendor, hardware.name, hardware.arch) == ("nvidia", "NVIDIA H200", "sm_90")
    assert (hardware.multiprocessors, hardware.l2_bytes) == (132, 62914560)
    assert (hardware.shared_memory_per_block_bytes, hardware.memory_bytes) == (232448, 150_120_824_832)
    assert (hardware.memory_bandwidth_bytes_per_s, hardware.max_clock_mhz) == (4_800_000_000_000, 1980)


def test_hardware_of_an_unknown_gpu() -> None:
    """Bandwidth follows from clock and bus; an AMD device's arch comes without its feature flags."""
    told = {**H200_PROPERTIES, "name": "AMD X", "gcnArchName": "gfx950:sramecc+", "L2_cache_size": 0}
    told |= {"memory_clock_rate": 2_000_000, "memory_bus_width": 8192}
    hardware = device.hardware_of_properties(SimpleNamespace(**told), is_amd=True)
    assert (hardware.vendor, hardware.arch, hardware.l2_bytes) == ("amd", "gfx950", None)
    assert hardware.memory_bandwidth_bytes_per_s == 2 * 2_000_000_000 * 8192 // 8


def test_hardware_of_a_silent_gpu() -> None:
    """What an old driver does not tell is unknown, not zero."""
    told = SimpleNamespace(name="GPU", major=1, minor=2, multi_processor_count=3, total_memory=4)
    hardware = device.hardware_of_properties(told, is_amd=False)
    assert (hardware.arch, hardware.l2_bytes, hardware.max_clock_mhz) == ("sm_12", None, None)
    assert (hardware.shared_memory_per_block_bytes, hardware.memory_bandwidth_bytes_per_s) == (None, None)


def test_this_cpu() -> None:
    """A CPU is hardware as well."""
    hardware = detect_hardware(torch.device("cpu"))
    assert hardware is not None
    assert hardware.name
    assert hardware.arch.startswith(("x86_64", "aarch64", "arm64"))
    assert hardware.multiprocessors >= 1
    assert hardware is detect_hardware("cpu")


def test_no_gpu_where_there_is_none() -> None:
    """Asking for a GPU without one is answered, not raised."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert detect_hardware("cuda") is None
    assert device.device_uuid("cuda") is None
    assert device.device_uuid("cpu") is None


def test_environment_names_versions_and_no_host() -> None:
    """What timings depend on, and nothing that would split a fleet."""
    environment = detect_environment()
    assert environment.torch == torch.__version__
    assert environment.triton[0].isdigit()
    assert environment.compute.split()[0] in {"cpu", "cuda", "rocm"}
    assert environment.os.startswith(("Linux", "Darwin"))
