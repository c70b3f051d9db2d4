"""Copy the small tables of a warehouse: devices, environments, problems, configs, decisions and marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.cache.bench import insert
from diode_store.cache.cache import RECENT
from diode_store.cache.layout import SNAPSHOTS
from diode_store.cache.source import KEYED, block_range, select
from diode_store.cache.world import peaks

if TYPE_CHECKING:
    import duckdb

    from diode_store.cache.cache import State
    from diode_store.cache.source import WarehouseRows

_DECIDE_TIMES = {"problems": "id, op, dtype, b, m, n, k, dimensions, inputs, scalars", "configs": "id, template"}
"""Tables on which summaries depend beside the peaks of devices, with the columns that count."""


def copy_small_tables(
    connection: duckdb.DuckDBPyConnection,
    source: WarehouseRows,
    before: State,
    prints: dict[str, str],
    blocks: dict[str, dict[str, str]],
) -> tuple[dict[str, list[str]], bool]:
    """Bring the small tables of the recent file up to date, in the warehouse's snapshot.

    Returns:
        Lines about rows that were left out, by table, and whether a row changed on which old summaries may depend.
    """
    left_out = {name: lines for name, lines in before.left_out.items() if name not in SNAPSHOTS}
    is_other = False
    for table, columns in SNAPSHOTS.items():
        known = before.left_out.get(table, [])
        conditions = _changed(table, before, prints, blocks)
        if conditions is None:
            left_out[table] = known
            continue
        source.left_out.clear()
        target = f"{RECENT}.{table}"
        then = _decisive(connection, table)
        for condition in conditions or ["true"]:
            connection.execute(f"DELETE FROM {target} WHERE {condition}")
            insert(connection, target, columns, source.batches(columns, select(table, condition)))
        left_out[table] = list(dict.fromkeys([*(known if conditions else ()), *source.left_out]))
        source.left_out.clear()
        is_other = is_other or not then <= _decisive(connection, table) or bool(then and known)
    return left_out, is_other


def _decisive(connection: duckdb.DuckDBPyConnection, table: str) -> set[object]:
    """Return the rows of a table on which summaries depend, without the columns on which they do not."""
    if table == "hardware":
        return set(peaks(connection, f"FROM {RECENT}.hardware").items())
    if table not in _DECIDE_TIMES:
        return set()
    columns = _DECIDE_TIMES[table]
    return set(connection.execute(f"SELECT hash({columns}) FROM {RECENT}.{table}").fetchall())


def _changed(table: str, before: State, prints: dict[str, str], blocks: dict[str, dict[str, str]]) -> list[str] | None:
    """Return the conditions of the rows to copy; an empty list means all rows, and None no row."""
    has_same_print = before.fingerprints.get(table) == prints[table]
    if table not in KEYED or not has_same_print:
        return None if has_same_print else []
    then, now = before.blocks.get(table, {}), blocks[table]
    changed = sorted((block for block in then.keys() | now.keys() if then.get(block) != now.get(block)), key=int)
    if not changed:
        return None
    return ["id BETWEEN {} AND {}".format(*block_range(block)) for block in changed]
