"""Fixtures of the collectors' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_store.records import Measurement


@pytest.fixture(scope="session")
def bundled() -> tuple[Measurement, ...]:
    """Return every bundled measurement; reading them takes a second."""
    from diode_collectors.spool.reading import measurements_in
    from diode_store.resources import bundled_data_dir

    return tuple(measurements_in(bundled_data_dir()))


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return an empty spool."""
    path = tmp_path / "spool"
    path.mkdir()
    return path


@pytest.fixture
def directory(spool: Path) -> Path:
    """Return the empty spool, where ``spool`` is a ``Spool``."""
    return spool


@pytest.fixture
def where(spool: Path, database_path: Path) -> Sequence[object]:
    """Return the options that name a spool and a warehouse."""
    return ("--spool", spool, "--database", database_path)
