"""Fields of the records that are plain values: columns of a table or of a file have the same names.

The other fields of a record, its dictionaries and nested records, are stored in other ways.
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
"""Fields of a measurement other than its source, an enum, and its times, which databases store differently."""
