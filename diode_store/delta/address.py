"""Addresses of published tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import reduce
from operator import and_
from urllib.parse import parse_qsl, urlencode

import pyarrow.dataset as ds

from diode_store.delta.table import table_url
from diode_store.errors import PublishedTableError
from diode_store.system.urls import redact

_FILTERS = ("hardware", "since")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


@dataclass(frozen=True)
class Address:
    """Address of a published table, and the part of it that is wanted."""

    url: str
    hardware: str | None = None
    """Only this device, by its whole name."""
    since: str | None = None
    """Only this month, such as ``2026-11``, and later ones."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse a URL or folder that may end with ``?hardware=NAME&since=MONTH``.

        Raises:
            PublishedTableError: a parameter is unknown, repeated or not a month, or the scheme is another one.
        """
        url, _, query = text.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        found = dict(pairs)
        wrong = next((name for name in found if name not in _FILTERS), None)
        if wrong is not None:
            known = " and ".join(_FILTERS)
            raise PublishedTableError(f"{redact(text)}: unknown parameter {wrong}; there are {known}")
        if len(found) < len(pairs):
            raise PublishedTableError(f"{redact(text)}: a parameter is there twice; name one device and one month")
        since = found.get("since")
        if since is not None and not _MONTH.fullmatch(since):
            raise PublishedTableError(f"{redact(text)}: since is {since!r}, not a month such as 2026-11")
        return cls(table_url(url), found.get("hardware"), since)

    @property
    def condition(self) -> ds.Expression | None:
        """Condition that the wanted files meet; None if all are wanted."""
        parts = [ds.field("hardware") == self.hardware] if self.hardware is not None else []
        parts += [ds.field("month") >= self.since] if self.since is not None else []
        return reduce(and_, parts) if parts else None

    def __str__(self) -> str:
        """Return the address as ``parse`` reads it."""
        named = {name: value for name in _FILTERS if (value := getattr(self, name)) is not None}
        return f"{self.url}?{urlencode(named)}" if named else self.url
