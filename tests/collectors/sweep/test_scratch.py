"""Where a sweep puts its files."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest

from diode_collectors.sweep import scratch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return what stands for the file system in memory; the temporary folder is beside it."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "memory"


@pytest.mark.parametrize(("devices", "where"), [(0, "memory"), (2**30, "temporary")])
def test_in_memory_where_there_is_room(memory: Path, devices: int, where: str) -> None:
    """Else in the temporary folder."""
    with scratch.scratch_folder(devices, memory) as folder:
        assert folder.path.parent == memory.parent / where
    assert list(folder.path.parent.iterdir()) == []


def test_tmpdir_overrides(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much room there is in memory."""
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    with scratch.scratch_folder(0, memory) as folder:
        assert folder.path.parent == memory.parent / "temporary"
