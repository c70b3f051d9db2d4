"""Rows of a published table, as another program reads them, and those that it should have."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import polars as pl

from diode_store.delta.contract import COLUMNS
from diode_store.query import analytics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Rows = list[tuple[str, ...]]


def there(table: Path | str, options: Mapping[str, str] | None = None) -> Rows:
    """Return every row of a published table by Polars, sorted."""
    frame = pl.read_delta(str(table), storage_options=dict(options) if options else None).select(list(COLUMNS))
    return sorted(tuple(map(_plain, row)) for row in frame.iter_rows())


def wanted(*urls: str) -> Rows:
    """Return the rows of the view ``published`` in some warehouses, sorted."""
    found = []
    for url in urls:
        reports: list[Any] = []
        with closing(analytics.connect(url, on_sync=reports.append)) as connection:
            uuid = analytics.cache_of(url).state().warehouse  # type: ignore[union-attr]
            rows = connection.sql("FROM published").select(*(name for name in COLUMNS if name != "warehouse"))
            place = list(COLUMNS).index("warehouse")
            found += [tuple(map(_plain, (*row[:place], uuid, *row[place:]))) for row in rows.fetchall()]
    return sorted(found)


def _plain(value: Any) -> str:
    """Return a value as text; the published times name their zone."""
    return repr(value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value)
