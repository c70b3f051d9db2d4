"""Messages about a database say which one, and what to type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_store.system.settings import default_database_url, upgrade_command

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand


@pytest.mark.parametrize(
    ("chosen", "database", "expected"),
    [
        (None, "/data/w.db", "`diode db upgrade --database /data/w.db`"),
        (None, "my data/w.db", "`diode db upgrade --database 'my data/w.db'`"),
        ("/data/w.db", "/data/w.db", "`diode db upgrade`"),
        ("sqlite:////data/w.db", "/data/w.db", "`diode db upgrade`"),
        ("/data/other.db", "/data/w.db", "`diode db upgrade --database /data/w.db`"),
        ("postgresql://me:secret@db/w", "postgresql+psycopg://me:***@db/w", "`diode db upgrade`"),
        (None, "postgresql+psycopg://me@db/w", "`diode db upgrade --database postgresql+psycopg://me@db/w`"),
    ],
)
def test_the_remedy_names_the_database(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, database: str, expected: str
) -> None:
    """What the command would take anyway is not repeated, any other database is."""
    if chosen is not None:
        monkeypatch.setenv("DIODE_DATABASE_URL", chosen)
    assert upgrade_command(database) == expected


def test_the_users_own_warehouse_is_the_default() -> None:
    """Nothing needs to be named when nobody chose a database."""
    assert upgrade_command(default_database_url().removeprefix("sqlite:///")) == "`diode db upgrade`"


@pytest.mark.parametrize(
    "command",
    [
        ("query", "SELECT 1"),
        ("query", "SELECT 1", "--no-sync"),
        ("fastest", "--hardware", "h200"),
        ("sync",),
        ("db", "stats"),
        ("hardware", "list"),
    ],
)
def test_every_command_says_the_same(command: tuple[str, ...], diode: RunCommand, tmp_path: Path) -> None:
    """A file that is no database, a folder, and one that is not there are told apart by all of them."""
    text, none = tmp_path / "text.db", tmp_path / "none.db"
    text.write_text("this is no database, only a text that somebody wrote\n" * 20)
    expected = f"error: {text}: it is not an SQLite database; name another file\n"
    assert diode(*command, "--database", str(text)) == (1, "", expected)
    expected = f"error: {none} holds no warehouse yet; create it with `diode db upgrade --database {none}`\n"
    assert diode(*command, "--database", str(none)) == (1, "", expected)
    assert not none.exists()
    assert diode(*command, "--database", str(tmp_path)) == (
        1,
        "",
        f"error: {tmp_path} is a folder; name a file in it\n",
    )
