"""The folder of kernels that problems of a sweep share, which may outlast it."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

from diode_collectors.sweep.lane.process import KERNELS
from diode_store.errors import DiodeError, first_line
from diode_store.files import try_lock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from diode_collectors.sweep.plan import SweepPlan

_GENERATION = 20_000
"""After so many kernels a device they begin to be compiled anew, in another folder. A kernel takes 90 kB, so that a
generation takes 1.8 GB at most, and two of them twice as much, as long as some lane uses the one before."""
_LOCK = "lock"


def kernels_folder(plan: SweepPlan, scratch: Path) -> Path:
    """Return where kernels are that problems share: where they are kept, or else in the sweep's own folder."""
    return (plan.kernels or scratch).absolute() / KERNELS


class KeptKernels:
    """Kernels by generation, of which the last is used, and those before are removed."""

    def __init__(self, folder: Path, devices: int) -> None:
        """Go on with what is there, for so many GPUs."""
        self.folder = folder
        self._most = _GENERATION * devices
        self._first = max(self._there(), default=0)
        last = self.folder / str(self._first)
        self._before = sum(1 for _ in last.iterdir()) if last.exists() else 0

    def generation(self, timings: int, used: Collection[int]) -> int:
        """Return of which generation the kernels of the next problem are, and remove those that are past.

        Args:
            timings: of this sweep so far; each may have been of a new kernel.
            used: generations that lanes use.
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
    """Have a folder that outlasts a sweep to this one alone, if there is one; another would remove what it uses.

    Raises:
        DiodeError: another sweep uses it, or it cannot be written.
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
