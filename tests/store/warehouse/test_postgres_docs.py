"""What docs/postgresql.md tells an operator to type works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored import content

import samples
from diode_store.warehouse.store import Store
from postgres_server import PostgresServer, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import RunCommand

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
PAGE = (Path(__file__).parents[3] / "docs" / "postgresql.md").read_text()


@pytest.fixture
def fresh() -> Iterator[PostgresServer]:
    """Return a server on which nothing is set up."""
    with PostgresServer.in_temp_folder() as server:
        server.sql("DROP ROLE diode")
        yield server


def statements(after: str) -> list[str]:
    """Return the SQL of the first block below a heading."""
    block = re.search(r"```sql\n(.*?)```", PAGE.partition(f"## {after}\n")[2], re.DOTALL)
    assert block is not None
    return [statement.strip() for statement in block[1].split(";") if statement.strip()]


@pytest.mark.long
def test_the_page_from_set_up_to_restore(fresh: PostgresServer, diode: RunCommand, tmp_path: Path) -> None:
    """Role and database as on the page are enough to upgrade, write, read with a second role, dump and restore."""
    for statement in statements("Set it up once"):
        fresh.sql(statement)
    url = fresh.url("warehouse")
    assert diode("db", "upgrade", "--database", url).code == 0
    with Store.open(url) as store:
        store.write([samples.measurement(number) for number in range(5)])
    for statement in statements("Roles that only read"):
        fresh.sql(statement, "warehouse")
    reader = fresh.url("warehouse", "analyst")
    assert diode("query", "SELECT count(*) FROM observations", "--csv", "--database", reader).out.split() == [
        "count_star()",
        "15",
    ]
    assert "permission denied" in diode("hardware", "alias", "h200", "ours", "--database", reader).err
    dump = str(tmp_path / "warehouse.dump")
    fresh.run_program("pg_dump", "--format=custom", f"--file={dump}", "--username=diode", "warehouse")
    fresh.run_program("createdb", "--owner=diode", "restored")
    fresh.run_program("pg_restore", "--no-owner", "--role=diode", "--exit-on-error", "--dbname=restored", dump)
    restored = fresh.url("restored")
    assert diode("db", "check", "--database", restored).code == 0
    assert content(restored) == content(url)
    with Store.open(restored) as store:
        assert store.write([samples.measurement(number) for number in range(4, 7)]).measurements == 2


def test_the_commands_tried_are_those_of_the_page() -> None:
    """The options that the test above gives pg_dump and pg_restore are on the page."""
    for shown in (
        "pg_dump --format=custom --file=warehouse.dump",
        "createdb --owner=diode restored",
        "pg_restore --no-owner --role=diode --exit-on-error --dbname=restored warehouse.dump",
    ):
        assert shown in PAGE
