"""Either kind of database as any other program sees it: past our own code, with the same answers from both."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

from diode_store.system.urls import sqlite_path


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement, commit, and return its rows; JSON comes as the text that was stored."""
    path = sqlite_path(url)
    if path is not None:
        with closing(sqlite3.connect(path)) as connection, connection:
            return connection.execute(statement).fetchall()
    import psycopg
    from psycopg.types.json import set_json_loads

    with psycopg.connect(url.replace("+psycopg", "", 1)) as server:
        set_json_loads(lambda text: text.decode() if isinstance(text, bytes) else text, server)
        cursor = server.execute(statement)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def moment(stored: str | datetime) -> datetime:
    """Return a stored time; SQLite keeps text without a zone, which is UTC."""
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def refuse_inserts(url: str, table: str, message: str, condition: str = "1 = 1") -> None:
    """Let the database refuse new rows of a table for which ``condition`` holds of NEW, until ``allow_inserts``."""
    if sqlite_path(url) is not None:
        rows(
            url,
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END",
        )
        return
    rows(
        url,
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {condition} THEN RAISE EXCEPTION '{message}'; END IF; RETURN NEW; END $$",
    )
    rows(url, f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")


def allow_inserts(url: str, table: str) -> None:
    """Let rows in again."""
    if sqlite_path(url) is not None:
        rows(url, "DROP TRIGGER refuse")
    else:
        rows(url, f"DROP TRIGGER refuse ON {table}")
        rows(url, "DROP FUNCTION refuse")
