from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_store.errors import DatabaseError, DiodeError, SchemaError, SettingsError
from diode_store.system.settings import Settings, default_database_url
from diode_store.system.urls import has_password, is_url, redact, refuse_password_on_command_line, sqlite_path

if TYPE_CHECKING:
    from conftest import RunCommand


def test_defaults_are_in_the_users_data_folder(tmp_path: Path) -> None:
    """Without a setting everything is in one folder of the user's own, which is not made yet."""
    home = tmp_path / "data-home" / "torch-diode"
    assert Settings.from_environment() == Settings(home / "spool", None)
    assert default_database_url() == f"sqlite:///{home}/warehouse.db"
    assert not home.exists()


def test_every_setting_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable sets one field; a tilde is the user's home."""
    monkeypatch.setenv("HOME", "/home/me")
    values = {"DIODE_SPOOL": "~/spool", "DIODE_CACHE": "/cache"}
    expected = Settings(Path("/home/me/spool"), Path("/cache"))
    assert Settings.from_environment(values) == expected
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert Settings.from_environment() == expected


def test_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that a shell script left empty does not count."""
    assert Settings.from_environment({"DIODE_SPOOL": "", "DIODE_CACHE": ""}) == Settings.from_environment({})
    before = default_database_url()
    monkeypatch.setenv("DIODE_DATABASE_URL", "")
    monkeypatch.setenv("DIODE_CONFIG", "")
    assert default_database_url() == before


def test_one_rule_for_the_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, diode: RunCommand) -> None:
    """The option, DIODE_DATABASE_URL, the settings file (named, else the user's own), the default: in this order."""
    own = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    own.parent.mkdir(parents=True)

    def used_by(*command: str) -> str:
        return str(re.search(r"([\w/.-]*\.db)\b", diode(*command).out + diode(*command).err)[1])  # type: ignore[index]

    def used() -> str:
        """Return the warehouse that each kind of command uses."""
        found = {used_by("db", "current"), used_by("query", "SELECT 1"), used_by("ingest", "--once")}
        (database,) = found
        return database

    assert used() == str(tmp_path / "data-home" / "torch-diode" / "warehouse.db")
    own.write_text(f'database = "{tmp_path}/own.db"\nspool = "{tmp_path}/spool"\n')
    assert used() == f"{tmp_path}/own.db"
    named = tmp_path / "named.toml"
    named.write_text(f'database = "{tmp_path}/named.db"\n')
    monkeypatch.setenv("DIODE_CONFIG", str(named))
    assert used() == f"{tmp_path}/named.db"
    monkeypatch.setenv("DIODE_DATABASE_URL", f"{tmp_path}/environment.db")
    assert used() == f"{tmp_path}/environment.db"
    assert used_by("db", "current", "--database", f"{tmp_path}/option.db") == f"{tmp_path}/option.db"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("database = ?", "this is not TOML"),
        ("database = 3", "database must be a URL, or the path of an SQLite file"),
        (f"database = {'[' * 200_000}", "this is nested too deep"),
        ("database = ''", "database must be a URL, or the path of an SQLite file"),
        ("database = 'postgresql://me:geheim@db/w'", "database holds a password, and others may read the file"),
    ],
)
def test_a_bad_settings_file_is_one_line(tmp_path: Path, text: str, message: str, diode: RunCommand) -> None:
    """For commands that need it: it names the file; a command that is told its database does not read it."""
    own = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    ended = diode("db", "current")
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"error: {own}: {message}")
    assert "geheim" not in ended.err
    other = f"--database {tmp_path}/w.db"
    assert f"create it with `diode db upgrade {other}`" in diode("db", "stats", *other.split()).err


@pytest.mark.parametrize("name", ["DIODE_SPOOL", "DIODE_CACHE"])
def test_the_home_of_nobody(name: str) -> None:
    """A tilde before somebody who does not exist is an error that names the variable."""
    with pytest.raises(SettingsError, match=f"{name}: ~no-such-user/x: there is no such user; write the path out"):
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


@pytest.mark.quick(1)
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
