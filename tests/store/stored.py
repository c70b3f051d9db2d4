"""What a warehouse holds, as records again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from diode_store.records import Measurement


def content(url: str) -> list[Measurement]:
    """Return everything a warehouse holds, timings sorted by config."""
    with Store.open(url) as store:
        found = iter_measurements(store.engine)
        return [replace(m, timings=tuple(sorted(m.timings, key=lambda t: t.config.key))) for m in found]
