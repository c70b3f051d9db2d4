"""Temporary folders that outlive no process for long."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from diode_store.errors import DiodeError
from diode_store.system.private_folder import MARK, private_folder, remove_abandoned

PREFIX = "diode-test-"
MAKE = """
import os, subprocess, sys
from pathlib import Path
from diode_store.system.private_folder import private_folder
entered = private_folder("diode-test-", Path(sys.argv[1]))
folder = entered.__enter__()
(folder.path / "kept").touch()
print(folder.path, flush=True)
"""
DIE = "os.kill(os.getpid(), 9)"


def made_by_a_process(parent: Path, then: str = "") -> Path:
    """Return the folder that another Python made, before it did ``then`` and was killed."""
    command = [sys.executable, "-c", f"{MAKE}{then}\n{DIE}", str(parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Path(done.stdout.strip())


def names(folder: Path) -> set[str]:
    """Return what is in a folder."""
    return {path.name for path in folder.iterdir()}


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_closed_to_others_and_gone_in_the_end(tmp_path: Path) -> None:
    """Two of one purpose do not meet; nothing stays open."""
    before = open_files()
    with private_folder(PREFIX, tmp_path) as first, private_folder(PREFIX, tmp_path) as second:
        assert first.path != second.path
        assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
        (first.path / "file").touch()
        assert names(tmp_path) == {f"{path.name}{end}" for path in (first.path, second.path) for end in ("", MARK)}
    assert names(tmp_path) == set()
    assert open_files() == before


def test_gone_after_an_error(tmp_path: Path) -> None:
    """Whatever ends its use."""
    with pytest.raises(KeyboardInterrupt), private_folder(PREFIX, tmp_path):
        raise KeyboardInterrupt
    assert names(tmp_path) == set()


def test_what_a_killed_process_left(tmp_path: Path) -> None:
    """The next one removes it, but neither what a living process uses nor what somebody made by hand."""
    abandoned = made_by_a_process(tmp_path)
    assert (abandoned / "kept").exists()
    mine = {"diode-test-mine", "diode-test-link", "diode-test-cpu.lock", f"diode-test-link{MARK}"}
    (tmp_path / "diode-test-mine").mkdir()
    (tmp_path / "diode-test-mine" / "1.seg").touch()
    (tmp_path / "diode-test-link").symlink_to(tmp_path / "diode-test-mine")
    (tmp_path / f"diode-test-link{MARK}").symlink_to(tmp_path / "diode-test-mine" / "1.seg")
    (tmp_path / "diode-test-cpu.lock").touch()
    with private_folder(PREFIX, tmp_path) as living:
        remove_abandoned(PREFIX, tmp_path)
        assert names(tmp_path) == mine | {living.path.name, f"{living.path.name}{MARK}"}
    assert names(tmp_path) == mine
    assert names(tmp_path / "diode-test-mine") == {"1.seg"}


def test_a_child_keeps_what_its_killed_parent_shared(tmp_path: Path) -> None:
    """Until it ends too."""
    silent = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    child = f"child = subprocess.Popen(['/bin/sleep', '600'], pass_fds=[folder.lock], {silent})"
    shared = made_by_a_process(tmp_path, f"{child}; (folder.path / 'child').write_text(str(child.pid))")
    pid = int((shared / "child").read_text())
    try:
        remove_abandoned(PREFIX, tmp_path)
        assert (shared / "kept").exists()
    finally:
        os.kill(pid, 9)
    until = time.monotonic() + 30
    while shared.exists() and time.monotonic() < until:
        remove_abandoned(PREFIX, tmp_path)
    assert names(tmp_path) == set()


def test_without_locks(tmp_path: Path) -> None:
    """Where a file system has none, the folder is made and removed, and nothing is taken for abandoned."""
    before = open_files()
    abandoned = made_by_a_process(tmp_path)
    with mock.patch.object(fcntl, "flock", side_effect=OSError(37, "No locks available")):
        for _ in range(2):
            with private_folder(PREFIX, tmp_path) as folder:
                assert folder.path.is_dir()
                assert abandoned.is_dir()
    assert names(tmp_path) == {abandoned.name, f"{abandoned.name}{MARK}"}
    assert open_files() == before


def test_nowhere_to_make_one(tmp_path: Path) -> None:
    """The remedy is named."""
    with (
        pytest.raises(DiodeError, match=r"No such file or directory.*; set TMPDIR to one"),
        private_folder(PREFIX, tmp_path / "none"),
    ):
        pass
