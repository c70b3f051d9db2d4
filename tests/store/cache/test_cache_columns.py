"""The two ways in which an SQLite file is read for the cache: by rows in the sync itself, by columns in its workers."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from diode_store.cache.adbc import open_columns
from diode_store.cache.arrow_rows import arrow_schema
from diode_store.cache.layout import BYTES, FLAG, INT, JSON, REAL, TEXT, TIME
from diode_store.cache.sqlite import SqliteSource
from diode_store.errors import CacheError, DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from diode_store.cache.source import Facts

    Reader = Callable[[Path], AbstractContextManager[Facts]]

COLUMNS = {"i": INT, "r": REAL, "t": TEXT, "f": FLAG, "w": TIME, "j": JSON, "b": BYTES}
DEFINITION = "CREATE TABLE kinds (i INTEGER, r FLOAT, t VARCHAR, f BOOLEAN, w DATETIME, j JSON, b BLOB)"
SELECT = "SELECT i, r, t, f, w, j, b FROM kinds ORDER BY rowid"
NOTHING = (None,) * 7
NOON = "2026-11-20 12:00:00.000001"


@contextmanager
def by_rows(path: Path) -> Iterator[Facts]:
    """Read as a sync does that shares nothing out."""
    with closing(sqlite3.connect(path)) as connection:
        yield SqliteSource(path, connection)


@pytest.fixture(params=[by_rows, open_columns], ids=["rows", "columns"])
def reader(request: pytest.FixtureRequest) -> Reader:
    """Return each way of reading."""
    found: Reader = request.param
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a database may be made."""
    return tmp_path / "kinds.db"


def fill(path: Path, *rows: tuple[object, ...]) -> None:
    """Make a database with a column of each kind."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(DEFINITION)
        connection.executemany("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def table_of(source: Facts) -> pa.Table:
    """Return the whole table as it is now."""
    return pa.Table.from_batches(list(source.batches(COLUMNS, SELECT)), arrow_schema(COLUMNS))


def read(reader: Reader, path: Path) -> pa.Table:
    """Return the whole table in the cache's types."""
    with reader(path) as source, source.snapshot():
        return table_of(source)


def test_every_kind_of_value(path: Path, reader: Reader) -> None:
    """The ends of each type, text of any kind, and NULLs beside them."""
    row = (2**63 - 1, 5e-324, "\U0001f600\n'", True, NOON, '{"a": [1, null]}', b"\0\xff")
    other = (-(2**63), -1.5, "", False, "2026-11-20T12:00:00.000001", "{}", b"")
    fill(path, row, NOTHING, other)
    moment = datetime(2026, 11, 20, 12, 0, 0, 1)  # noqa: DTZ001 - the cache's are in UTC without saying so
    found = read(reader, path)
    assert list(zip(*found.to_pydict().values(), strict=True)) == [
        (*row[:4], moment, *row[5:]),
        NOTHING,
        (*other[:4], moment, *other[5:]),
    ]
    kinds = [pa.int64(), pa.float64(), pa.string(), pa.bool_(), pa.timestamp("us"), pa.string(), pa.binary()]
    assert found.schema.types == kinds


def test_what_comes_after_many_nulls(path: Path, reader: Reader) -> None:
    """A column that is empty for thousands of rows has its type nevertheless."""
    row = (1, 2.5, "late", True, NOON, "{}", b"late")
    fill(path, *[NOTHING] * 5_000, row)
    found = read(reader, path)
    assert [column.null_count for column in found.columns] == [5_000] * 7
    assert found["t"][-1].as_py() == "late"
    assert found["b"][-1].as_py() == b"late"


def test_nothing_at_all(path: Path, reader: Reader) -> None:
    """No rows, and nothing but NULLs, are columns of the cache's types too."""
    fill(path)
    empty = read(reader, path)
    assert empty.num_rows == 0
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", NOTHING)
    nulls = read(reader, path)
    assert nulls.to_pylist() == [dict.fromkeys(COLUMNS)]
    assert nulls.schema == empty.schema


def test_times_that_name_a_zone(path: Path, reader: Reader) -> None:
    """They are turned into UTC, beside others that are in UTC already."""
    fill(
        path, *[(None, None, None, None, time, None, None) for time in (NOON, "2026-11-20 12:00:00.000001+02:00", None)]
    )
    first = datetime(2026, 11, 20, 12, 0, 0, 1, UTC)
    found = read(reader, path)["w"].to_pylist()
    assert found == [first.replace(tzinfo=None), first.replace(hour=10, tzinfo=None), None]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[("i", value) for value in ("often", "0x10", b"12", 1.5)],
        *[("r", value) for value in ("fast", "nan", b"1.5")],
        *[("f", value) for value in ("yes", "true", 0.5, 300)],
        *[("w", value) for value in ("noon", 12)],
    ],
)
def test_a_value_of_another_type(path: Path, column: str, value: object) -> None:
    """SQLite stores anything anywhere. By rows, a row that the cache cannot hold is left out; by columns, it ends."""
    row = dict(zip(COLUMNS, (1, 2.5, "text", True, NOON, "{}", b""), strict=True))
    fill(path, tuple(row.values()), tuple({**row, column: value}.values()))
    with by_rows(path) as source:
        assert table_of(source).num_rows == 1
        [line] = source.left_out
    assert line.startswith("a row with ")
    assert f": {column} is {value!r}, not " in line
    with pytest.raises(CacheError, match=r"^the warehouse holds a value of the wrong type: [^\n]*; correct that row$"):
        read(open_columns, path)


def test_text_that_is_none(path: Path, reader: Reader) -> None:
    """Bytes that are no UTF-8 do not get into the cache, whose readers would stumble over them."""
    fill(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO kinds (t) VALUES (CAST(x'ff41' AS TEXT))")
    with pytest.raises((CacheError, sqlite3.OperationalError), match=r"UTF-?8"):
        read(reader, path)


def test_a_damaged_file(path: Path) -> None:
    """The columns' reader says what to do, as the rows' does."""
    fill(path, *[(number, None, "x" * 1_000, None, None, None, None) for number in range(2_000)])
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 2] = b"\xff" * (len(content) // 2 - len(content) // 3)
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"kinds\.db: it is damaged; restore it from a backup$"):
        read(open_columns, path)


def test_a_file_that_is_not_there(path: Path) -> None:
    """It is not made."""
    with pytest.raises(DatabaseError, match=r"kinds\.db: "):
        read(open_columns, path)
    assert not path.exists()


def test_one_state_of_the_database(path: Path, reader: Reader) -> None:
    """What is committed while a snapshot is read is seen by the next one."""
    fill(path, (1, *NOTHING[1:]))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer, reader(path) as source:
        writer.execute("PRAGMA journal_mode = WAL")
        counts = []
        for _ in range(2):
            with source.snapshot():
                for _ in range(2):
                    counts.append(table_of(source).num_rows)
                    writer.execute("INSERT INTO kinds (i) VALUES (2)")
    assert counts == [1, 1, 3, 3]
