"""Folder for a sweep's kernel files while it compiles and times them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from diode_store.system.private_folder import private_folder, remove_abandoned

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from diode_store.system.private_folder import PrivateFolder

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it is private
"""Linux's file system in memory."""
BYTES_PER_DEVICE = 4 * 2**30
"""Bytes in memory for the kernels of one device: several exhaustive problems under way, or shared kernels (see
``kept_kernels``). As much is to spare.
"""
_PREFIX = "diode-sweep-"


def scratch_folder(devices: int, memory: Path = MEMORY) -> AbstractContextManager[PrivateFolder]:
    """Return a folder to enter, in memory if there is plenty: a compiled kernel is half a dozen small files.

    A hundred compile workers that write to a disk wait for it as long as they compile. ``TMPDIR`` overrides the folder.

    Raises:
        DiodeError: on entering: the folder cannot be made.
    """
    parent = None
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK):
        remove_abandoned(_PREFIX, memory)  # first, because it frees room
        free = shutil.disk_usage(memory).free
        parent = memory if free >= devices * BYTES_PER_DEVICE else None
    return private_folder(_PREFIX, parent)
