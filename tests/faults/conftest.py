"""Fixtures of the tests of faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import ForkServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return the path of a spool that does not exist yet."""
    return tmp_path / "spool"


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons, and ends them with the test."""
    with ForkServer(tmp_path / "processes") as server:
        yield server


@pytest.fixture
def ordinary(tmp_path: Path) -> Iterator[ForkServer]:
    """Return what starts writers and daemons that file permissions hold for, also when root runs the tests."""
    with ForkServer(tmp_path / "processes", ordinary=True) as server:
        yield server
