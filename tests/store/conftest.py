"""Fixtures of the warehouse's tests."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from round_trip import RoundTrip
from view_warehouse import Warehouse

from diode_store.cache.cache import Cache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store


@pytest.fixture
def cache(database_path: Path) -> Cache:
    """Return the cache of the empty warehouse."""
    return Cache(database_path.with_suffix(".cache"))


@pytest.fixture
def another_database(_template_database: Path, tmp_path: Path) -> str:
    """Return the path of a second empty warehouse."""
    return str(shutil.copy(_template_database, tmp_path / "another.db"))


@pytest.fixture
def round_trip(diode: RunCommand, database_url: str, another_database: str, tmp_path: Path) -> RoundTrip:
    """Return the way from the warehouse into the second one."""
    return RoundTrip(diode, database_url, another_database, tmp_path)


@pytest.fixture
def raw(database_path: Path) -> Iterator[sqlite3.Connection]:
    """Return a plain connection to the warehouse, for changes no store makes."""
    with closing(sqlite3.connect(database_path, isolation_level=None)) as connection:
        yield connection


@pytest.fixture
def default_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command find the test's warehouse."""
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)


@pytest.fixture
def views(store: Store, database_url: str, make_measurement: MakeMeasurement) -> Warehouse:
    """Return an empty warehouse to measure into, whose views can be asked."""
    return Warehouse(store, database_url, make_measurement)
