"""Where a sweep keeps the files of kernels while it compiles and times them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - the folder made in it is private
"""Linux's file system in memory."""
BYTES_PER_DEVICE = 4 * 2**30
"""An exhaustive problem's kernels take up to 0.4 GB, a device has up to four under way; and as much to spare."""


def scratch_folder(devices: int, memory: Path = MEMORY) -> Path:
    """Make a folder, in memory where there is plenty: a compiled kernel is half a dozen small files.

    A hundred compile workers that write them to a disk wait for it as long as they compile. ``TMPDIR``
    overrides this.
    """
    parent = None
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK):
        free = shutil.disk_usage(memory).free
        parent = memory if free >= devices * BYTES_PER_DEVICE else None
    return Path(tempfile.mkdtemp(prefix="diode-sweep-", dir=parent))
