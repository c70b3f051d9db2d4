"""Records as version 1 of the wire format held them, which is read for ever: arrays of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from diode_store.wire import codec
from diode_store.wire.record_tables import CONFIG_TABLE, TIMING_TABLE

if TYPE_CHECKING:
    from diode_store.records import KernelConfig, Measurement


def content_v1(measurement: Measurement) -> dict[str, Any]:
    """Return the map that version 1 wrote."""
    content = msgpack.unpackb(codec.encode(measurement), strict_map_key=True)
    index: dict[KernelConfig, int] = {}
    rows = [[index.setdefault(timing.config, len(index)), *timing[1:]] for timing in measurement.timings]
    columns = [*CONFIG_TABLE, "extra"] if any(config.extra for config in index) else list(CONFIG_TABLE)
    return {
        **content,
        "v": 1,
        "config_columns": columns,
        "configs": [[getattr(config, name) for name in columns] for config in index],
        "timing_columns": list(TIMING_TABLE),
        "timings": rows,
    }


def encode_v1(measurement: Measurement) -> bytes:
    """Return the bytes that version 1 wrote."""
    payload: bytes = msgpack.packb(content_v1(measurement))
    return payload
