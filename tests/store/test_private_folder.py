"""Temporary folders that outlive no process for long."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from diode_store.errors import DiodeError
from diode_store.private_folder import new_private_folder, remove_abandoned

PREFIX = "diode-test-"
MAKE = """
import sys
from pathlib import Path
from diode_store.private_folder import new_private_folder
folder = new_private_folder("diode-test-", Path(sys.argv[1]))
(folder.path / "kept").touch()
print(folder.path, flush=True)
"""


def made_by_a_process(parent: Path, then: str) -> Path:
    """Return the folder that another Python made, before it did ``then``."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE + then, str(parent)],
        env={**os.environ, "TMPDIR": str(parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    return Path(done.stdout.strip())


def test_closed_to_others_and_gone_in_the_end(tmp_path: Path) -> None:
    """Two of one purpose do not meet."""
    first, second = new_private_folder(PREFIX, tmp_path), new_private_folder(PREFIX, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([first.path, second.path])
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700
    (first.path / "file").touch()
    first.remove()
    assert list(tmp_path.iterdir()) == [second.path]
    second.remove()


def test_what_a_killed_process_left(tmp_path: Path) -> None:
    """The next one removes it, but neither what a living process uses nor anything else."""
    abandoned = made_by_a_process(tmp_path, "import os; os.kill(os.getpid(), 9)")
    assert (abandoned / "kept").exists()
    (tmp_path / "diode-test-mine").symlink_to(tmp_path)
    (tmp_path / "diode-test-cpu.lock").touch()
    (tmp_path / "other").mkdir()
    living = new_private_folder(PREFIX, tmp_path)
    remove_abandoned(PREFIX, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "diode-test-mine",
        "diode-test-cpu.lock",
        "other",
        living.path.name,
    }
    living.remove()


def test_a_child_keeps_what_its_killed_parent_shared(tmp_path: Path) -> None:
    """Until it ends too."""
    hand_on = (
        "import os, subprocess; child = subprocess.Popen(['/bin/sleep', '600'], pass_fds=[folder.lock],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        "(folder.path / 'child').write_text(str(child.pid)); os.kill(os.getpid(), 9)"
    )
    shared = made_by_a_process(tmp_path, hand_on)
    child = int((shared / "child").read_text())
    try:
        remove_abandoned(PREFIX, tmp_path)
        assert (shared / "kept").exists()
    finally:
        os.kill(child, 9)
    while Path(f"/proc/{child}/fd").exists() and list(Path(f"/proc/{child}/fd").iterdir()):
        pass
    remove_abandoned(PREFIX, tmp_path)
    assert not shared.exists()


def test_nowhere_to_make_one(tmp_path: Path) -> None:
    """The remedy is named."""
    with pytest.raises(DiodeError, match=r"No such file or directory.*; set TMPDIR to one"):
        new_private_folder(PREFIX, tmp_path / "none")
