"""A query finds every view, though a connection for one statement makes only what the statement may read."""

from __future__ import annotations

from contextlib import closing

import pytest

import diode_store
from diode_store.errors import QueryError
from diode_store.query import analytics
from diode_store.views.view_files import VIEWS, views_of


@pytest.mark.quick(4)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_needs_no_other_to_be_asked_for(database_url: str, view: str) -> None:
    """Views that it uses are made with it."""
    with closing(analytics.connect(database_url, views=(view,))) as connection:
        assert connection.execute(f"SELECT count(*) FROM {view}").fetchall() == [(0,)]  # noqa: S608 - our own name


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "sql",
    [
        'SELECT count(*) FROM "CONFIG_RANK"',
        "SELECT count(*) FROM memory.main.config_rank",
        "SELECT count(*) - 1 FROM information_schema.tables WHERE table_name = 'config' || '_rank'",
        "SELECT count(*) - 1 FROM (SHOW TABLES) WHERE name = 'config' || '_rank'",
    ],
)
def test_however_a_view_is_named(database_url: str, sql: str) -> None:
    """A process that answers queries makes it before the first one that may read it."""
    with diode_store.open(database_url) as warehouse:
        assert warehouse.query("SELECT 1").rows() == [(1,)]
        assert warehouse.query(sql).rows() == [(0,)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("catalog", ["sqlite_master", "pg_class", "information_schema.tables"])
def test_a_catalog_has_every_view(database_url: str, catalog: str) -> None:
    """Whatever was asked before."""
    with diode_store.open(database_url) as warehouse:
        first = warehouse.query(f"SELECT count(*) FROM {catalog}").rows()  # noqa: S608 - our own name
        warehouse.query(f"SELECT count(*) FROM {', '.join(VIEWS)}").rows()  # noqa: S608 - likewise
        assert warehouse.query(f"SELECT count(*) FROM {catalog}").rows() == first  # noqa: S608 - likewise


def test_a_mistyped_view(database_url: str) -> None:
    """The message suggests a view, though none was made for the statement."""
    with diode_store.open(database_url) as warehouse:
        with pytest.raises(QueryError, match='observation does not exist! Did you mean "observations"'):
            warehouse.query("SELECT * FROM observation")
        with pytest.raises(QueryError, match="this statement is not understood"):
            warehouse.query(None)  # type: ignore[arg-type]


def test_what_is_made_for_a_statement() -> None:
    """The views that it names, or all of them."""
    assert views_of("SELECT * FROM measurements") == ()
    assert views_of("FROM Regret JOIN coverage USING (problem_id)") == ("coverage", "regret")
    assert views_of("DESCRIBE regret") == VIEWS
