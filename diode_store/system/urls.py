"""Parse addresses of databases and servers, hide their passwords, and connect to SQLite files.

This module imports little, because commands check their options here before they load SQLAlchemy.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote

from diode_store.errors import DatabaseError
from diode_store.system.files import expanded

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

TABLE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "file")
"""Schemes of the URLs that a published Delta table may have; a text without a scheme is a folder."""
BUSY_TIMEOUT_S = 30.0
"""Time that a connection waits for a lock of another process."""

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+_.-]*://")
# Greedy, so that a password holding an unescaped "@" is hidden whole.
_CREDENTIALS = re.compile(r"^(?P<scheme>[^:/]+://)(?P<user>[^:/@]*):(?P<password>.*)@", re.DOTALL)
_PASSWORD_PARAMETER = re.compile(r"(?P<name>[?&](?:ssl)?password=)[^&]*", re.IGNORECASE)
_NEITHER = re.compile(r"^postgres(ql)?(\+\w+)?:|(^|\s)(host|dbname|user|password)\s*=", re.IGNORECASE)
_SQLITE = re.compile(r"^sqlite(?:\+\w+)?://")


_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]+)?\]")
_MOST_PORT = 65535


class Address(NamedTuple):
    """Address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``HOST:PORT``, as ``parse_address`` reads it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address | None:
    """Parse ``HOST:PORT``, with an IPv6 host in brackets; return None for anything else."""
    host, colon, port = text.rpartition(":")
    if not (colon and _HOST.fullmatch(host) and port.isascii() and port.isdigit() and int(port) <= _MOST_PORT):
        return None
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def is_url(text: str) -> bool:
    """Return whether ``text`` is a URL; anything else is the path of an SQLite file."""
    return _SCHEME.match(text) is not None


def is_published(text: str) -> bool:
    """Return whether ``text`` names a published Delta table and no database: by its scheme, or a table's folder."""
    scheme, separator, _ = text.partition("://")
    if separator:
        return scheme.lower() in TABLE_SCHEMES
    return os.path.isdir(os.path.join(text.partition("?")[0], "_delta_log"))  # noqa: PTH112, PTH118 - raises nothing


def whole_address(text: str) -> str:
    """Return the address of a published table in the one form that names it from every folder."""
    table, mark, part = text.partition("?")
    folder = table.removeprefix("file://").rstrip("/")
    if "://" not in folder:
        folder = "file://" + os.path.abspath(os.path.expanduser(folder))  # noqa: PTH100, PTH111 - raises nothing
    return folder + mark + part


def only_readable(text: str) -> str:
    """Return why a command that needs a database refuses a published table."""
    return f"{redact(text)} is a published table, which can only be read; name a warehouse"


def sqlite_path(text: str) -> Path | None:
    """Return the file of an SQLite URL or path; None for any other database.

    Raises:
        DatabaseError: ``text`` is empty, a folder, SQLite in memory (which would not outlive the process), or a
            server's address that is not a URL.
    """
    if not text:
        raise DatabaseError("the database address is empty; give a file or a URL such as sqlite:////data/warehouse.db")
    if is_published(text):
        return None
    if not is_url(text):
        if _NEITHER.search(text):  # not shown: it may hold a password that `redact` does not find
            raise DatabaseError(
                "the database address is neither a file nor a URL; write postgresql://USER@HOST/DATABASE"
            )
        return _file(text)
    if not _SQLITE.match(text):
        return None
    name = _SQLITE.sub("", text).partition("?")[0]
    if not name.startswith("/") or name in {"/", "/:memory:"}:
        raise DatabaseError(f"{redact(text)}: not a file; write sqlite:///relative.db or sqlite:////absolute/path.db")
    return _file(name[1:])


def _file(text: str) -> Path:
    path = expanded(text, DatabaseError)
    if os.path.isdir(path):  # noqa: PTH112 - unlike Path.is_dir, it raises nothing
        raise DatabaseError(f"{path} is a folder; name a file in it")
    return path


def sqlite_uri(path: Path, mode: str) -> str:
    """Return the URI by which SQLite opens ``path`` in ``mode``: ``ro``, ``rw`` or ``rwc``."""
    return f"file:{quote(str(path))}?mode={mode}"


def connect_sqlite(
    path: Path, mode: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, check_same_thread: bool = True
) -> sqlite3.Connection:
    """Return a connection whose driver begins no transactions of its own, so that DDL is transactional too.

    Args:
        path: the file.
        mode: ``ro``, ``rw`` or ``rwc``.
        busy_timeout_s: time to wait for a lock of another process.
        check_same_thread: True if only this thread may use the connection.

    Raises:
        sqlite3.Error: the file cannot be opened.
    """
    import sqlite3

    uri = sqlite_uri(path, mode)
    return sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=check_same_thread
    )


def redact(text: str) -> str:
    """Return ``text`` with every password replaced by ``***``, for messages and logs."""
    hidden = _CREDENTIALS.sub(r"\g<scheme>\g<user>:***@", text)
    return _PASSWORD_PARAMETER.sub(r"\g<name>***", hidden)


def check_credentials(url: str) -> None:
    """Refuse a URL whose password holds an unescaped ``@``: the rest would count as the host and be shown.

    Raises:
        DatabaseError: the password holds an unescaped ``@``.
    """
    credentials = _CREDENTIALS.match(url)
    if credentials and "@" in credentials["password"]:
        raise DatabaseError(
            f"{redact(url)} is not a database URL: only the @ before the host may be unescaped; write any other as %40"
        )


def has_password(text: str) -> bool:
    """Return whether ``text`` is a URL that holds a password."""
    if not is_url(text):
        return False
    credentials = _CREDENTIALS.match(text)
    parameters = parse_qsl(text.partition("?")[2])
    return bool(credentials and credentials["password"]) or any(n.lower().endswith("password") for n, _ in parameters)


def refuse_password_on_command_line(url: str) -> None:
    """Refuse a URL that holds a password, because ``ps`` shows every command line to every user.

    Raises:
        DatabaseError: the URL holds a password.
    """
    if has_password(url):
        raise DatabaseError(
            "a password on the command line is visible to every user of this machine; "
            "put the URL in DIODE_DATABASE_URL, or the password in ~/.pgpass"
        )
