"""Ask NVIDIA's driver for its GPUs through NVML, without torch and without a CUDA context."""

from __future__ import annotations

from dataclasses import dataclass

from diode_store.errors import first_line


@dataclass(frozen=True)
class Driver:
    """The answer of NVIDIA's driver."""

    version: str = ""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs."""
    error: str | None = None
    """Reason why the driver was not asked, or why it does not answer although it is there."""

    @classmethod
    def ask(cls) -> Driver:
        """Ask the driver; without one there are no GPUs and no error."""
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
