"""Find out from little reading which rows of an SQLite warehouse are as they were at the last sync.

SQLite numbers measurements and decisions in the order of their commits, and never uses an id twice. The warehouse
stores each with the current time. So the last row of a table, its *tip*, stands for every insert before the tip. If a
backup is restored and the rest is delivered again in another order, the tip is missing or has another time. Deletes
show in the number of rows up to the tip. If ids are missing, a sum over the others shows whether they are the same.

Problems have no time, but nobody deletes them, and each is stored before the measurements that name it. So the tip of
the measurements also stands for the problems up to the highest one that a measurement names.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.cache.source import digest_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_COLUMNS = {"measurements": "id, uid, ingested_at", "decisions": "id, uid, ingested_at", "problems": "id, key"}
"""Columns of a tip by table."""
_LAST = 256
"""Rows of a tip; one would do if nobody ever changed rows by hand."""
_LAST_ID = "SELECT coalesce(max(id), 0) FROM {}"
_LAST_NAMED = (
    "SELECT coalesce(max((SELECT max(problem_id) FROM measurements WHERE hardware_id = hardware.id)), 0) FROM hardware"
)
_COUNT = "SELECT count(*) FROM {}"
# A plain sum would take 5 and 8 for 6 and 7.
_SUM = "SELECT coalesce(sum(id * id % 1000000007), 0) FROM {}"


class Tips:
    """Tips of the tables in one snapshot; a tip is a text that begins with its id."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        """Read through ``connection``, which has begun a transaction on ``file``."""
        self._connection = connection
        # The version of the schema also changes when SQLite copies a backup into the file.
        self._file = (*_place(file), self._number("PRAGMA schema_version"))
        self._whole: dict[str, int] = {}

    def now(self) -> dict[str, str]:
        """Return the tip of each table."""
        last_ids = {table: _LAST_NAMED if table == "problems" else _LAST_ID.format(table) for table in _COLUMNS}
        return {table: self._tip(table, self._number(sql)) for table, sql in last_ids.items()}

    def unchanged(self, before: dict[str, str]) -> dict[str, int]:
        """Return by table the id up to which the rows are as they were when the tips were ``before``."""
        last_ids = {table: int(tip.partition(":")[0]) for table, tip in before.items()}
        found = {table: last for table, last in last_ids.items() if self._tip(table, last) == before[table]}
        if "measurements" not in found:
            found.pop("problems", None)
        return found

    def _tip(self, table: str, last: int) -> str:
        rows = self._connection.execute(
            f"SELECT {_COLUMNS[table]} FROM {table} WHERE id <= ? ORDER BY id DESC LIMIT {_LAST}", (last,)
        ).fetchall()
        count = self._up_to(last, _COUNT.format(table))
        others = None if count == last else self._up_to(last, _SUM.format(table))
        return f"{last}:{digest_of([repr((self._file, rows, count, others)).encode()])}"

    def _up_to(self, last: int, sql: str) -> int:
        """Return a number of the rows up to ``last``: SQLite takes the number of all rows from the smallest index."""
        if sql not in self._whole:
            self._whole[sql] = self._number(sql)
        return self._whole[sql] - self._number(f"{sql} WHERE id > {last}")

    def _number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])


def _place(file: Path) -> tuple[int, ...]:
    """Return what tells a file from another one in its place; nothing if the file was just removed."""
    with contextlib.suppress(OSError):
        found = file.stat()
        return found.st_dev, found.st_ino
    return ()
