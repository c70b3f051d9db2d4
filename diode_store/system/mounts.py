"""Find paths on a network file system, where neither SQLite nor locks are safe."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MOUNTS = Path("/proc/self/mountinfo")
"""File in which Linux lists its mounts; see proc_pid_mountinfo(5)."""
_OF_A_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "orangefs"}
    | {"panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs", "vboxsf", "vmhgfs", "wekafs"}
)
_LOCAL_FUSE = frozenset(
    {"bindfs", "cryfs", "encfs", "exfat", "fuse-overlayfs", "gocryptfs", "lxcfs", "mergerfs", "ntfs", "ntfs-3g"}
    | {"portal", "rosetta", "snapfuse", "squashfuse", "unionfs", "zfs-fuse"}
)
"""FUSE file systems that keep their files on this machine; any other counts as a network's."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path) -> str | None:
    """Return the type of the network's file system on which ``path`` is or will be; None on any other one."""
    place = os.path.realpath(path)
    mount_point = kind = ""
    for found, its_kind in _mounts():
        is_over = place == found or place.startswith(found.rstrip("/") + "/")
        if is_over and len(found) >= len(mount_point):  # a later mount at the same place hides the earlier one
            mount_point, kind = found, its_kind
    is_fuse = kind.startswith("fuse.") and kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind if is_fuse or kind in _OF_A_NETWORK else None


def _mounts() -> Iterator[tuple[str, str]]:
    """Yield each mount point and its type, in the order of mounting."""
    try:
        lines = MOUNTS.read_bytes().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        before, _, after = os.fsdecode(line).partition(" - ")
        yield _OCTAL.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4]), after.split(" ")[0]
