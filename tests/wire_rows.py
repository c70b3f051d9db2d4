"""Records as maps with tables of rows, which a test can change easily, and back to what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from diode_store.wire import codec

if TYPE_CHECKING:
    from diode_store.records import Measurement


def with_rows(measurement: Measurement) -> dict[str, Any]:
    """Return a measurement's map with a row for each config and each timing."""
    content = msgpack.unpackb(codec.encode(measurement), strict_map_key=True)
    configs = [msgpack.unpackb(row) for row in content["configs"]]
    count = len(measurement.timings)
    positions, *values = content["timings"]
    columns = [positions or list(range(count)), *values]
    whole = [column if isinstance(column, list) else [column] * count for column in columns]
    return {**content, "configs": configs, "timings": [list(row) for row in zip(*whole, strict=True)]}


def written(content: dict[str, Any]) -> bytes:
    """Return the bytes of a map with rows; tables that are no longer rows are written as they are."""
    changed = dict(content)
    configs, timings = content.get("configs"), content.get("timings")
    if isinstance(configs, list):
        changed["configs"] = [msgpack.packb(row) for row in configs]
    if isinstance(timings, list) and all(isinstance(row, list) for row in timings) and len(set(map(len, timings))) == 1:
        changed["timings"] = [list(column) for column in zip(*timings, strict=True)]
    payload: bytes = msgpack.packb(changed)
    return payload
