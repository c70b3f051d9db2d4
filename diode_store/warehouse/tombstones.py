"""Delete measurements and decisions, and remember that they were deleted.

Delivery is at least once: a segment that is read again, or data that ships with torch-diode, would bring back what
was deleted. So each deleted record leaves a tombstone, and its uid still counts as known.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from diode_store.values.times import with_zone
from diode_store.warehouse import schema
from diode_store.warehouse.dimensions import insert_for, select_by_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Tombstones:
    """The tombstones of one reason."""

    reason: str
    measurements: int
    """Number of records, decisions among them."""
    first_deleted_at: datetime
    last_deleted_at: datetime


def buried(connection: sa.Connection, uids: Iterable[bytes]) -> set[bytes]:
    """Return the uids whose records were deleted.

    Look for stored records *before* calling this. A record that is deleted in between then appears in one of the two.
    """
    wanted = list(uids)
    if not wanted:
        return set()
    return {bytes(row.uid) for row in select_by_key(connection, schema.tombstones.c.uid, wanted)}


def bury(connection: sa.Connection, ids: Sequence[int], reason: str) -> tuple[int, int]:
    """Delete measurements with their timings and metrics, and leave tombstones, all in the connection's transaction.

    Args:
        connection: a connection in a transaction that writes.
        ids: ids of the measurements, a few hundred at most; unknown ids are ignored.
        reason: the command that deletes them.

    Returns:
        Numbers of deleted measurements and timings.
    """
    measurements, timings, values = schema.measurements, schema.timings, schema.metric_values
    # All transactions lock rows in this order, so two that delete the same measurements cannot deadlock.
    chosen = sa.select(measurements.c.id, measurements.c.uid).where(measurements.c.id.in_(ids)).order_by("id")
    rows = connection.execute(chosen if connection.dialect.name == "sqlite" else chosen.with_for_update()).all()
    if not rows:
        return 0, 0
    _leave_tombstones(connection, [row.uid for row in rows], reason)
    found = [row.id for row in rows]
    gone = connection.execute(sa.delete(timings).where(timings.c.measurement_id.in_(found))).rowcount
    connection.execute(sa.delete(values).where(values.c.measurement_id.in_(found)))
    connection.execute(sa.delete(measurements).where(measurements.c.id.in_(found)))
    return len(found), gone


def bury_decisions(connection: sa.Connection, ids: Sequence[int], reason: str) -> int:
    """Delete decisions and leave tombstones, as ``bury`` does with measurements; return their number."""
    decisions = schema.decisions
    chosen = sa.select(decisions.c.id, decisions.c.uid).where(decisions.c.id.in_(ids)).order_by("id")
    rows = connection.execute(chosen if connection.dialect.name == "sqlite" else chosen.with_for_update()).all()
    if rows:
        _leave_tombstones(connection, [row.uid for row in rows], reason)
        connection.execute(sa.delete(decisions).where(decisions.c.id.in_([row.id for row in rows])))
    return len(rows)


def _leave_tombstones(connection: sa.Connection, uids: Iterable[bytes], reason: str) -> None:
    now = datetime.now(UTC)
    statement = insert_for(connection, schema.tombstones).on_conflict_do_nothing(index_elements=["uid"])
    connection.execute(statement, [{"uid": uid, "deleted_at": now, "reason": reason} for uid in uids])


def list_tombstones(connection: sa.Connection) -> list[Tombstones]:
    """Return the tombstones by reason, the reason with the first deletion first."""
    columns = schema.tombstones.c
    first, last = sa.func.min(columns.deleted_at), sa.func.max(columns.deleted_at)
    query = sa.select(columns.reason, sa.func.count(), first, last).group_by(columns.reason).order_by(first)
    return [
        Tombstones(reason, number, *(with_zone(moment).astimezone(UTC) for moment in times))
        for reason, number, *times in connection.execute(query)
    ]


def forget(connection: sa.Connection, reason: str | None = None) -> int:
    """Drop the tombstones of ``reason``, or all; return their number. Their records may then be stored again."""
    statement = sa.delete(schema.tombstones)
    if reason is not None:
        statement = statement.where(schema.tombstones.c.reason == reason)
    return connection.execute(statement).rowcount
