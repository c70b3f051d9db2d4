"""A second warehouse that publishes."""

from __future__ import annotations

import pytest

from diode_store.warehouse.store import Store


@pytest.fixture
def another_warehouse(another_database: str) -> str:
    """Return an empty database with a uuid of its own: test databases are copies, and a copy is the same warehouse."""
    with Store.open(another_database) as store, store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE warehouse SET uuid = 'another'")
    return another_database
