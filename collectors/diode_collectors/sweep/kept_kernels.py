"""Folder of the kernels that problems of a sweep share, which may outlast the sweep."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from diode_collectors.sweep.lane.process import KERNELS
from diode_store.errors import DiodeError, first_line
from diode_store.system.files import try_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from diode_collectors.sweep.plan import SweepPlan

_GENERATION = 20_000
"""Kernels for each device after which new ones go to another folder, a new generation. This bounds the size: two
generations exist while some lane uses the earlier one.
"""
_LOCK = "lock"


def kernels_folder(plan: SweepPlan, scratch: Path) -> Path:
    """Return the folder of shared kernels: the folder that keeps them, or else one in the sweep's own folder."""
    return (plan.kernels or scratch).absolute() / KERNELS


class KeptKernels:
    """Generations of kernels. The sweep uses the last one and removes earlier ones."""

    def __init__(self, folder: Path, devices: int) -> None:
        """Continue with the kernels in a folder, for a number of GPUs."""
        self.folder = folder
        self._most = _GENERATION * devices
        self._first = max(self._there(), default=0)
        last = self.folder / str(self._first)
        self._before = sum(1 for _ in last.iterdir()) if last.exists() else 0

    def generation(self, timings: int, used: Collection[int]) -> int:
        """Return the generation of kernels for the next problem, and remove unused earlier ones.

        Args:
            timings: Timings of this sweep so far. Each may have been of a new kernel.
            used: Generations that lanes use.
        """
        generation = self._first + (self._before + timings) // self._most
        for past in self._there():
            if past < generation and past not in used:
                shutil.rmtree(self.folder / str(past), ignore_errors=True)
        return generation

    def _there(self) -> list[int]:
        found = self.folder.iterdir() if self.folder.exists() else ()
        return [int(path.name) for path in found if path.name.isdecimal()]


@contextlib.contextmanager
def used_alone(folder: Path | None) -> Iterator[None]:
    """Reserve a folder that outlasts a sweep, if there is one; another sweep would remove kernels in use.

    Raises:
        DiodeError: another sweep uses the folder, or it cannot be written.
    """
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            is_ours = try_lock(stack.enter_context((folder / _LOCK).open("a")).fileno())
        except OSError as error:
            raise DiodeError(f"--kernels {folder}: {first_line(error)}; name a folder that can be written") from error
        if not is_ours:
            raise DiodeError(f"--kernels {folder}: another sweep uses it; name another folder, or wait for that one")
        yield
