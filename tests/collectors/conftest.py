"""Fixtures of the collectors' tests."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from swept import sweep_of_the_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from swept import Swept

    from diode_store.records import Measurement


@pytest.fixture(scope="session")
def bundled() -> Sequence[Measurement]:
    """Return the measurements of the first data set that ships; reading them takes a second."""
    from bundled_sets import FIRST

    return FIRST.found()


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


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Return one real sweep of three problems; tests leave its files as they are.

    Tests that use it are of the group ``sweeps``, so that one process sweeps for all of them.
    """
    return sweep_of_the_page(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def _devices_asked_once() -> Iterator[None]:
    """Start only one process that imports torch to tell the devices, however many commands ask; it sees no GPU."""
    from diode_collectors.sweep import devices

    real = devices._ask

    @functools.cache
    def ask(kind: str) -> tuple[list[devices.SweepDevice], str]:
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            return real(kind)

    with mock.patch.object(devices, "_ask", ask):
        yield
