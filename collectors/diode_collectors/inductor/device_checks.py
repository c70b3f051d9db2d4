"""Checks of `diode doctor`: which GPUs the driver sees, and which of them torch can use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.driver import Driver
from diode_store.command_line.diagnosis import Finding, ok, problem, warning
from diode_store.command_line.render import counted
from diode_store.errors import first_line
from diode_store.records import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_store.command_line.diagnosis import Setup

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA_ID, _DISPLAY_CLASS = "0x10de", "0x03"
_AMD_DRIVER = Path("/sys/module/amdgpu/version")
_GET_TORCH = "install the build for your GPU from https://pytorch.org/get-started/locally"


def check_driver(_setup: Setup) -> Iterator[Finding]:
    """Yield a finding on the GPUs that the driver sees. This needs no torch."""
    yield driver_finding(Driver.ask(), amd=_AMD_DRIVER.exists(), on_bus=_nvidia_gpus_on_bus())


def driver_finding(driver: Driver, *, amd: bool, on_bus: int) -> Finding:
    """Return the finding that follows from a driver's answer.

    Args:
        driver: the answer of NVIDIA's driver.
        amd: True if AMD's driver is loaded.
        on_bus: number of NVIDIA GPUs on the PCI bus.
    """
    if driver.error is not None:
        return problem(
            "GPU",
            f"the NVIDIA driver does not answer: {driver.error}",
            "try `nvidia-smi`; reboot, or reinstall nvidia-ml-py",
        )
    if driver.gpus:
        return ok("GPU", f"{_listed(driver.gpus)}, driver {driver.version}")
    if amd:
        return ok("GPU", f"the AMD driver {_AMD_DRIVER.read_text().strip()} is loaded")
    if on_bus:
        return warning(
            "GPU", f"{counted(on_bus, 'NVIDIA GPU')} on the PCI bus, but no driver", "install NVIDIA's driver"
        )
    return ok("GPU", "none; torch.compile uses the CPU")


def check_torch(_setup: Setup) -> Iterator[Finding]:
    """Yield findings: whether torch and Triton import, and whether torch sees the GPUs that the driver sees."""
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a torch that does not import may fail in any way
        text = f"cannot be imported: {type(error).__name__}: {first_line(error)}"
        yield problem("torch", text, "reinstall it: https://pytorch.org/get-started/locally")
        return
    from diode_collectors.inductor.device import detect_environment

    environment = detect_environment()
    driver = Driver.ask()
    yield torch_finding(f"{environment.torch} for {environment.compute}", driver.gpus, _gpus_of(torch))
    if environment.triton != UNKNOWN:
        yield ok("Triton", environment.triton)
    elif driver.gpus:
        yield problem("Triton", "not installed; torch.compile needs it for GPU kernels", _GET_TORCH)
    else:
        yield ok("Triton", "not installed; only GPU kernels need it")


def torch_finding(build: str, by_driver: Sequence[str], by_torch: Sequence[str]) -> Finding:
    """Return the finding that follows from the names of the GPUs that the driver and a build of torch see."""
    if by_torch and len(by_torch) >= len(by_driver):
        return ok("torch GPU", f"{build} sees {_listed(by_torch)}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and by_driver:
        seen = _listed(by_torch) if by_torch else "no GPU"
        return warning("torch GPU", f"{build} sees {seen}: CUDA_VISIBLE_DEVICES is {visible!r}", "unset it to use all")
    if build.endswith(" for cpu") and by_driver:
        return problem("torch GPU", f"{build} cannot use {_listed(by_driver)}", _GET_TORCH)
    if by_driver:
        text = f"{build} sees {len(by_torch)} of {len(by_driver)} GPUs"
        return problem("torch GPU", text, f"update the driver, or {_GET_TORCH}")
    return ok("torch GPU", f"{build} sees no GPU")


def _gpus_of(torch: Any) -> tuple[str, ...]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of an old driver; the finding reports it
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return tuple(torch.cuda.get_device_name(index) for index in range(count))


def _listed(names: Sequence[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def _nvidia_gpus_on_bus() -> int:
    def says(device: Path, name: str, start: str) -> bool:
        try:
            return (device / name).read_text().startswith(start)
        except OSError:
            return False

    return sum(says(d, "vendor", _NVIDIA_ID) and says(d, "class", _DISPLAY_CLASS) for d in _PCI.glob("*"))
