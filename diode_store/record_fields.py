"""Which fields of the records are plain values: columns of a table, or of a file, that have the same name.

What else a record has, its dictionaries and the records inside it, is stored in ways of its own.
"""

from __future__ import annotations

from diode_store.records import DeviceState, Environment, Hardware, TimingMethod

HARDWARE = tuple(name for name in Hardware.__dataclass_fields__ if name != "extra")
ENVIRONMENT = tuple(name for name in Environment.__dataclass_fields__ if name not in {"extra", "template_hashes"})
TIMING_METHOD = tuple(TimingMethod.__dataclass_fields__)
DEVICE_STATE = tuple(DeviceState.__dataclass_fields__)
MEASUREMENT = (
    "host",
    "device_uuid",
    "sweep_id",
    "collector_version",
    "is_replay",
    "search_space",
    "sample_seed",
    "choice_policy",
    "family",
    "dataset",
    "licence",
)
"""Of a measurement; its source is an enum, and its times are stored differently by each database."""
