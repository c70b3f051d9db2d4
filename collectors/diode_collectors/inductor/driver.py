"""NVIDIA's driver and its GPUs, asked through NVML: that needs neither torch nor a CUDA context."""

from __future__ import annotations

from dataclasses import dataclass

from diode_store.errors import first_line


@dataclass(frozen=True)
class Driver:
    """The answer of NVIDIA's driver."""

    version: str = ""
    gpus: tuple[str, ...] = ()
    """Their names."""
    error: str | None = None
    """Why it was not asked, or does not answer although it is there."""

    @classmethod
    def ask(cls) -> Driver:
        """Ask through NVML; without a driver there are no GPUs and no error."""
        try:
            import pynvml
        except ImportError:
            return cls(error="nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            return cls()
        except pynvml.NVMLError as error:
            return cls(error=first_line(error))
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return cls(pynvml.nvmlSystemGetDriverVersion(), tuple(map(pynvml.nvmlDeviceGetName, handles)))
        except pynvml.NVMLError as error:
            return cls(error=first_line(error))
        finally:
            pynvml.nvmlShutdown()
