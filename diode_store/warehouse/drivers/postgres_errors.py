"""Messages for PostgreSQL's errors: cause and remedy on one line, without the user's data."""

from __future__ import annotations

import re
from typing import Any

# What psycopg puts before libpq's message.
_PREFIX = re.compile(r"^connection (failed|is bad): ")

_BY_STATE = {
    "28P01": "check the user and the password, in DIODE_DATABASE_URL or ~/.pgpass",
    "28000": "check the user, and that the server's pg_hba.conf lets it in",
    "3D000": "create it with createdb, or check the URL's path",
    "42501": "connect as the role that owns the warehouse",
    "25006": "connect to the primary server, not to a standby",
    "53100": "its disk is full; make room and try again",
    "53300": "raise max_connections or end other programs, and try again",
    "55P03": "another transaction holds it locked; try again when that transaction is done",
    "57P01": "try again when it has restarted",
    "57P02": "try again when it has restarted",
    "57P03": "try again in a moment",
}
"""Remedies by SQLSTATE, which is the same in every language of a server."""

# Errors without an answer of the server have no SQLSTATE, only libpq's message.
_BY_WORDS = {
    "password authentication failed": _BY_STATE["28P01"],
    "no password supplied": _BY_STATE["28P01"],
    "no pg_hba.conf entry": _BY_STATE["28000"],
    "is starting up": _BY_STATE["57P03"],
    "is shutting down": _BY_STATE["57P01"],
    "recovery mode": _BY_STATE["57P03"],
    "too many clients": _BY_STATE["53300"],
    "remaining connection slots": _BY_STATE["53300"],
    "does not exist": "create it, or check the URL",
    "onnection refused": "start the server, or check the URL's host and port",
    "No such file or directory": "start the server, or check the URL's host and port",
    "could not translate host name": "check the URL's host",
    "failed to resolve host": "check the URL's host",
    "timeout expired": "check the URL's host and port, and that the server and the network between answer",
    "server closed the connection": "try again when it is back",
    "connection is closed": "try again when it is back",
    "connection is lost": "try again when it is back",
    "consuming input failed": "try again when it is back",
}


def reason(error: BaseException) -> str:
    """Return the cause on one line, with the remedy if it is known."""
    return with_remedy(_said(error), getattr(error, "sqlstate", None))


def with_remedy(said: str, state: str | None = None) -> str:
    """Return an error's message, with the remedy for its SQLSTATE or its words if there is one."""
    remedy = _BY_STATE.get(state or "") or next((known for words, known in _BY_WORDS.items() if words in said), None)
    return f"{said}; {remedy}" if remedy else said


def _said(error: BaseException) -> str:
    """Return the server's message without its DETAIL and CONTEXT, which may quote rows; or libpq's first line."""
    diagnosis: Any = getattr(error, "diag", None)
    primary = getattr(diagnosis, "message_primary", None)
    lines = [line.strip() for line in str(primary or error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return " ".join(_PREFIX.sub("", text).split()).rstrip(":.")
