"""Decisions as rows: inserted beside measurements, in the same transaction."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Any

from diode_store.warehouse import schema
from diode_store.warehouse.bulk import insert_missing
from diode_store.warehouse.drivers.binding import binding

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    import sqlalchemy as sa

    from diode_store.decisions import DecisionRecord
    from diode_store.warehouse.dimensions import Dimensions

_PLAIN = (
    "uid",
    "decided_by",
    "reason",
    "mode",
    "policy",
    "model_sha256",
    "candidates",
    "predicted_vendor_us",
    "p_within_2pct",
    "similar_to",
    "seconds",
    "observed",
    "failure",
    "host",
    "hook_version",
)
"""Columns that are fields of the record."""


def insert_decisions(
    connection: sa.Connection, decisions: Iterable[DecisionRecord], dimensions: Dimensions, now: datetime
) -> int:
    """Insert the decisions whose uid is new; return their number.

    Args:
        connection: a connection in a transaction that writes (``database.write_transaction``).
        decisions: decisions with different uids.
        dimensions: knows the ids of all records that they name.
        now: time at which they come in.

    Raises:
        DatabaseError: the database failed.
        RecordError: a value does not fit its column.
    """
    rows = [_values(decision, dimensions, now) for decision in decisions]
    return insert_missing(connection, schema.decisions, rows, "uid") if rows else 0


def _values(decision: DecisionRecord, dimensions: Dimensions, now: datetime) -> dict[str, Any]:
    with binding():  # a time in the year 1 may not exist in UTC
        decided_at = decision.decided_at.astimezone(UTC)
    kept = [(dimensions.configs.ids[config], predicted_us) for config, predicted_us in decision.kept]
    config_id, predicted_us = kept[0] if kept else (None, None)
    return {
        **{name: getattr(decision, name) for name in _PLAIN},
        "hardware_id": dimensions.hardware.ids[decision.hardware],
        "environment_id": dimensions.environments.ids[decision.environment],
        "problem_id": dimensions.problems.ids[decision.problem],
        "config_id": config_id,
        "predicted_us": predicted_us,
        "kept": kept,
        "decided_at": decided_at,
        "ingested_at": now,
        "extra": dict(decision.extra) or None,
    }
