"""Find decisions to delete, and delete them a few at a time.

Decisions are a log: unlike measurements, no decision has to stay as the last of its kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from diode_store.values.times import with_zone
from diode_store.warehouse import schema
from diode_store.warehouse.pruning import in_turns
from diode_store.warehouse.tombstones import bury_decisions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from datetime import timedelta

_AT_ONCE = 500


@dataclass(frozen=True)
class DecisionPlan:
    """Decisions to delete; nothing is deleted yet."""

    ids: Sequence[int]
    """Ids of the decisions, in order."""
    oldest: datetime | None
    """Time at which the first of the decisions was ingested; None if there are none."""
    newest: datetime | None


def plan_decisions(
    connection: sa.Connection, older_than: timedelta | None, hardware_ids: Collection[int] | None
) -> DecisionPlan:
    """Return the decisions to delete.

    Args:
        connection: connection to the warehouse.
        older_than: least time since a decision was ingested; None for no limit.
        hardware_ids: hardware of the decisions; None for any.
    """
    columns = schema.decisions.c
    goes = []
    if older_than is not None:
        goes.append(columns.ingested_at < datetime.now(UTC) - older_than)
    if hardware_ids is not None:
        goes.append(columns.hardware_id.in_(hardware_ids))
    ids = list(connection.scalars(sa.select(columns.id).where(*goes).order_by(columns.id)))
    ends = sa.select(sa.func.min(columns.ingested_at), sa.func.max(columns.ingested_at)).where(*goes)
    oldest, newest = (moment and with_zone(moment).astimezone(UTC) for moment in connection.execute(ends).one())
    return DecisionPlan(ids, oldest, newest)


def carry_out_decisions(
    engine: sa.Engine,
    ids: Sequence[int],
    reason: str,
    on_progress: Callable[[float], None] = lambda _done: None,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Delete the decisions of a plan, and yield their number after each transaction.

    Args:
        engine: the warehouse.
        ids: ids of the decisions.
        reason: text for their tombstones.
        on_progress: called with the number of decisions just done.
        before_each: called before each transaction; may raise, to end the work.

    Raises:
        DatabaseError: the database failed; exactly the yielded decisions are deleted.
    """
    some = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
    yield from in_turns(
        engine, some, lambda connection, batch: bury_decisions(connection, batch, reason), on_progress, before_each
    )
