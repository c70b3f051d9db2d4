from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from compare import NOT_COMPARED, assert_exactly_once
from producing import produce, produced

from diode_store.warehouse import schema
from diode_store.warehouse.store import Store

MEASUREMENTS = produce(1, range(12))
UIDS = [m.uid for m in MEASUREMENTS]
TABLES = (schema.hardware, schema.environments, schema.problems, schema.configs, schema.measurements, schema.timings)
COLUMNS = [(t.name, c.name) for t in TABLES for c in t.columns if c.name not in NOT_COMPARED]
OTHER_VALUES = {
    "JSON": """'{{"a": 1}}'""",
    "BLOB": "X'00'",
    "DATETIME": "'2020-01-01 00:00:00.000000'",
    "BOOLEAN": "1 - coalesce({0}, 0)",
}
ANOTHER = "CASE WHEN typeof({0}) IN ('integer', 'real') THEN {0} + 1 ELSE coalesce({0}, '') || '7' END"
FIRST = {"timings": "measurement_id = 1"}
BREAKING = (
    "DELETE FROM timings WHERE measurement_id = (SELECT max(id) FROM measurements)",
    "DELETE FROM timings WHERE (measurement_id, config_id) = (SELECT measurement_id, config_id FROM timings LIMIT 1)",
    "DELETE FROM measurements WHERE id = (SELECT min(id) FROM measurements)",
    "UPDATE timings SET measurement_id = 999 WHERE measurement_id = 1",
    "INSERT INTO timings SELECT 999, config_id, 1.5, 'ok', 0, NULL, NULL, NULL, NULL FROM timings LIMIT 1",
    "UPDATE measurements SET hardware_id = hardware_id % 3 + 1 WHERE id = 1",
    "UPDATE measurements SET uid = randomblob(16) WHERE id = 2",
    "UPDATE measurements SET ingested_at = '2001-01-01 00:00:00.000000' WHERE id = 2",
)


@pytest.fixture(scope="module")
def filled(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a warehouse that holds what it should."""
    path = Path(shutil.copy(_template_database, tmp_path_factory.mktemp("filled") / "warehouse.db"))
    with Store.open(str(path)) as store:
        store.write(MEASUREMENTS)
    assert assert_exactly_once(str(path), UIDS, produced) == len(UIDS)
    return path


def is_noticed(path: Path, change: str) -> bool:
    """Tell whether the comparison fails after a change that is made behind its back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(change).rowcount > 0
    try:
        assert_exactly_once(str(path), UIDS, produced)
    except (AssertionError, KeyError):
        return True
    return False


@pytest.mark.quick(20)
@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=str)
def test_a_wrong_value_in_any_column_is_noticed(filled: Path, tmp_path: Path, table: str, column: str) -> None:
    """The comparison is not one that always passes: each column of each table counts."""
    kind = str(schema.metadata.tables[table].c[column].type).partition("(")[0]
    value = OTHER_VALUES.get(kind, ANOTHER).format(column)
    path = Path(shutil.copy(filled, tmp_path / "changed.db"))
    change = f"UPDATE {table} SET {column} = {value} WHERE {FIRST.get(table, 'id = 1')}"  # noqa: S608 - our own names
    assert is_noticed(path, change)


@pytest.mark.parametrize("change", BREAKING)
def test_a_row_too_few_or_too_many_is_noticed(filled: Path, tmp_path: Path, change: str) -> None:
    """Nor does it overlook what is missing, belongs to nothing, or belongs to somebody else."""
    assert is_noticed(Path(shutil.copy(filled, tmp_path / "changed.db")), change)
