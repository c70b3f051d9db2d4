from __future__ import annotations

from pathlib import Path

import pytest

from diode_store.errors import DatabaseError, DiodeError, SchemaError, SettingsError
from diode_store.settings import Settings
from diode_store.urls import has_password, is_url, redact, refuse_password_on_command_line, sqlite_path


def test_defaults_are_in_the_users_data_folder(tmp_path: Path) -> None:
    """Without a setting everything is in one folder of the user's own, which is not made yet."""
    home = tmp_path / "data-home" / "torch-diode"
    assert Settings.from_environment() == Settings(f"sqlite:///{home}/warehouse.db", home / "spool", None, "INFO")
    assert not home.exists()


def test_every_setting_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable sets one field; a tilde is the user's home, and levels may be in lower case."""
    monkeypatch.setenv("HOME", "/home/me")
    values = {
        "DIODE_DATABASE_URL": "postgresql://db/warehouse",
        "DIODE_SPOOL": "~/spool",
        "DIODE_LAKE": "/lake",
        "DIODE_LOG_LEVEL": "debug",
    }
    expected = Settings("postgresql://db/warehouse", Path("/home/me/spool"), Path("/lake"), "DEBUG")
    assert Settings.from_environment(values) == expected
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == expected


def test_empty_variable_is_unset() -> None:
    """A variable that a shell script left empty does not count."""
    names = ("DIODE_DATABASE_URL", "DIODE_SPOOL", "DIODE_LAKE", "DIODE_LOG_LEVEL")
    assert Settings.from_environment(dict.fromkeys(names, "")) == Settings.from_environment({})


def test_unknown_log_level() -> None:
    """A level that does not exist is refused with those that do."""
    with pytest.raises(SettingsError, match="DIODE_LOG_LEVEL must be one of DEBUG, INFO, WARNING, ERROR, not 'loud'"):
        Settings.from_environment({"DIODE_LOG_LEVEL": "loud"})


@pytest.mark.parametrize("name", ["DIODE_SPOOL", "DIODE_LAKE"])
def test_the_home_of_nobody(name: str) -> None:
    """A tilde before somebody who does not exist is an error that names the variable."""
    with pytest.raises(SettingsError, match=f"{name} names the home of a user who does not exist: '~no-such-user/x'"):
        Settings.from_environment({name: "~no-such-user/x"})


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("warehouse.db", Path("warehouse.db")),
        ("/data/w.db", Path("/data/w.db")),
        ("sqlite:///relative/w.db", Path("relative/w.db")),
        ("sqlite:////data/w.db", Path("/data/w.db")),
        ("sqlite+pysqlite:////data/w.db?mode=rw", Path("/data/w.db")),
        ("C:thing", Path("C:thing")),
        ("postgresql://db/w", None),
    ],
)
def test_sqlite_path(text: str, path: Path | None) -> None:
    """A path or an SQLite URL is a file; any other URL is not."""
    assert sqlite_path(text) == path


def test_sqlite_path_of_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path typed with a tilde is in the user's home, though no shell expanded it."""
    monkeypatch.setenv("HOME", "/home/me")
    assert sqlite_path("~/w.db") == Path("/home/me/w.db")


@pytest.mark.parametrize("text", ["", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://relative.db"])
def test_sqlite_without_a_file(text: str) -> None:
    """A warehouse in memory would be gone with the process that made it."""
    with pytest.raises(DatabaseError, match=r"not a file; write sqlite:|the database address is empty"):
        sqlite_path(text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/w", "postgresql://me:***@db:5432/w"),
        ("postgresql+psycopg://me:s@cr@t@db/w", "postgresql+psycopg://me:***@db/w"),
        ("postgresql://:secret@db/w", "postgresql://:***@db/w"),
        (
            "postgresql://me@db/w?sslmode=require&password=secret&x=1",
            "postgresql://me@db/w?sslmode=require&password=***&x=1",
        ),
        ("postgresql://db/w?sslpassword=secret", "postgresql://db/w?sslpassword=***"),
    ],
)
def test_passwords_are_hidden_and_refused(url: str, shown: str) -> None:
    """No password gets into a message or a log, and none is taken from where every user can see it."""
    assert redact(url) == shown
    assert has_password(url)
    with pytest.raises(DatabaseError, match=r"visible to every user.*DIODE_DATABASE_URL") as refused:
        refuse_password_on_command_line(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me@db:5432/w", "postgresql://db/w?passfile=/x", "/data/a:b@c.db", "sqlite:////data/w.db", "w.db"],
)
def test_no_password_no_refusal(url: str) -> None:
    """An address without a password passes and is shown as it is."""
    refuse_password_on_command_line(url)
    assert redact(url) == url


def test_what_is_a_url() -> None:
    """A scheme makes a URL; a path with colons does not."""
    assert [is_url(text) for text in ("sqlite:///x", "postgresql+psycopg://x", "/a:/b", "x.db")] == [
        True,
        True,
        False,
        False,
    ]


def test_errors_say_something_by_default() -> None:
    """An error raised without words says its class's first line; one with words says these."""
    assert str(SchemaError()) == "The database has another schema revision; run `diode db upgrade`."
    assert str(SchemaError("mine")) == "mine"
    assert issubclass(SchemaError, DatabaseError)
    assert issubclass(DatabaseError, DiodeError)
