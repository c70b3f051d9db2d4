"""Find measurements that a warehouse can do without, and delete them a few at a time.

A plan is made first and changes nothing. Carrying it out takes short transactions with pauses between them, so that
writers of SQLite, which lets one write at a time, get their turn; ending it in the middle leaves a smaller plan for
the next time. Hardware, environments, problems and configs stay: they are few, and writers know them by their ids.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from diode_store.errors import PruneError
from diode_store.values.batching import in_batches
from diode_store.values.times import with_zone
from diode_store.warehouse import schema
from diode_store.warehouse.database import write_transaction
from diode_store.warehouse.tombstones import bury

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

Gone = TypeVar("Gone")
"""Result of a deleting transaction."""
_TIMINGS_AT_ONCE = 20_000
_MEASUREMENTS_AT_ONCE = 500
_DATASETS_LISTED = 20
# A waiting SQLite writer tries again within 100 ms; a pause as long as the work lets every other writer in.
_LEAST_PAUSE_S = 0.005

_M = schema.measurements.c


@dataclass(frozen=True)
class Rule:
    """Selection of measurements to delete: those of the given kinds that pass every given filter."""

    superseded: bool = False
    """Kind: another measurement took their place."""
    replays: bool = False
    """Kind: their times came out of a cache, not from the device."""
    flagged: bool = False
    """Kind: measurements with a reason not to trust them."""
    older_than: timedelta | None = None
    """Filter: time since they came into the warehouse, by its own clock; a machine with a wrong clock does no harm."""
    measured_before: datetime | None = None
    """Filter: end of the time in which they were measured; measurements without a time stay."""
    dataset: str | None = None
    hardware_ids: Collection[int] | None = None
    keep: int = 1
    """Number of measurements of each problem on each hardware that always stay: the most trusted, then the newest.

    0 lets the last one go too.
    """

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was selected: such a rule would delete everything."""
        kinds = self.superseded or self.replays or self.flagged
        filters = (self.older_than, self.measured_before, self.dataset, self.hardware_ids)
        return not kinds and all(given is None for given in filters)


@dataclass(frozen=True)
class Share:
    """Share of the measurements to delete, on one hardware and in one data set."""

    hardware: str
    dataset: str | None
    measurements: int
    timings: int
    oldest: datetime
    """Time at which the first of the measurements was ingested."""
    newest: datetime


@dataclass(frozen=True)
class Plan:
    """Measurements to delete; nothing is deleted yet."""

    ids: Sequence[int]
    """Ids of the measurements, in order."""
    kept: int
    """Measurements that the rule selects but that stay, as the last of their problem on their hardware."""
    shares: Sequence[Share] = field(default=())
    """Measurements to delete, by hardware and data set."""

    @property
    def timings(self) -> int:
        """Number of timings of these measurements."""
        return sum(share.timings for share in self.shares)


def plan(connection: sa.Connection, rule: Rule) -> Plan:
    """Return what ``rule`` would delete.

    Raises:
        PruneError: the rule is empty.
    """
    if rule.is_empty:
        raise PruneError
    goes = _goes(rule)
    ids = list(connection.scalars(_chosen(goes, rule.keep)))
    named = connection.scalar(sa.select(sa.func.count()).where(goes)) or 0
    return Plan(ids, named - len(ids), tuple(_shares(connection, ids)))


def missing_dataset(connection: sa.Connection, name: str) -> str | None:
    """Return one line with the known data sets if no measurement belongs to a data set; else None.

    Not an error: the same command may have deleted the whole data set before.
    """
    if connection.scalar(sa.select(_M.id).where(_M.dataset == name).limit(1)) is not None:
        return None
    known = sa.select(_M.dataset).where(_M.dataset.is_not(None)).distinct().order_by(_M.dataset)
    found = list(connection.scalars(known.limit(_DATASETS_LISTED + 1)))
    listed = ", ".join((*found[:_DATASETS_LISTED], *(["..."] if len(found) > _DATASETS_LISTED else [])))
    there_is = f"there is: {listed}" if found else "none belongs to any"
    return f"no measurement belongs to the data set {name!r}; {there_is}"


def carry_out(
    engine: sa.Engine,
    ids: Sequence[int],
    reason: str,
    on_progress: Callable[[float], None] = lambda _done: None,
    before_each: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, int]]:
    """Delete the measurements of a plan, and yield the numbers of measurements and timings after each transaction.

    Args:
        engine: the warehouse.
        ids: ids of the measurements.
        reason: text for their tombstones.
        on_progress: called with the number of measurements just done.
        before_each: called before each transaction; may raise, to end the work.

    Raises:
        DatabaseError: the database failed; exactly the yielded measurements are deleted.
    """
    batches = in_batches(_weighed(engine, ids), lambda pair: pair[1], _TIMINGS_AT_ONCE)
    some = ([number for number, _ in batch] for batch in batches)
    yield from in_turns(
        engine, some, lambda connection, batch: bury(connection, batch, reason), on_progress, before_each
    )


def in_turns(
    engine: sa.Engine,
    batches: Iterable[Sequence[int]],
    delete: Callable[[sa.Connection, Sequence[int]], Gone],
    on_progress: Callable[[float], None],
    before_each: Callable[[], None],
) -> Iterator[Gone]:
    """Delete each batch in a transaction of its own, pause as long as that took, and yield what ``delete`` returned."""
    pause_s = 0.0
    for batch in batches:
        time.sleep(pause_s)
        before_each()
        started = time.monotonic()
        with write_transaction(engine) as connection:
            gone = delete(connection, batch)
        pause_s = max(time.monotonic() - started, _LEAST_PAUSE_S)
        on_progress(len(batch))
        yield gone


def _goes(rule: Rule) -> sa.ColumnElement[bool]:
    kinds = [
        condition
        for wanted, condition in (
            (rule.superseded, _M.superseded_by.is_not(None)),
            (rule.replays, _M.is_replay),
            (rule.flagged, _M.flags.is_not(None)),
        )
        if wanted
    ]
    filters = [sa.or_(*kinds)] if kinds else []
    if rule.older_than is not None:
        filters.append(_M.ingested_at < datetime.now(UTC) - rule.older_than)
    if rule.measured_before is not None:
        filters.append(_M.measured_at < rule.measured_before)
    if rule.dataset is not None:
        filters.append(_M.dataset == rule.dataset)
    if rule.hardware_ids is not None:
        filters.append(_M.hardware_id.in_(rule.hardware_ids))
    return sa.and_(*filters)


def _chosen(goes: sa.ColumnElement[bool], keep: int) -> sa.Select[Any]:
    """Return the SELECT of the ids that go.

    Measurements of one problem on one hardware are ranked by trust. Among equals, those that stay anyway come first,
    then the newest. The first ``keep`` of each ranking stay. Only rankings that lose a measurement are read.
    """
    if keep <= 0:
        return sa.select(_M.id).where(goes).order_by(_M.id)
    # Materialized first: otherwise SQLite reads all measurements, through the index that the rest needs.
    named = sa.select(_M.hardware_id, _M.problem_id).where(goes).cte("named").prefix_with("MATERIALIZED")
    found = sa.select(named.c.hardware_id, named.c.problem_id).distinct().cte("found")
    trust = sa.case((_M.superseded_by.is_not(None), 3), (_M.is_replay, 2), (_M.flags.is_not(None), 1), else_=0)
    newest = sa.func.coalesce(_M.measured_at, _M.ingested_at).desc()
    place = sa.func.row_number().over(
        partition_by=(_M.hardware_id, _M.problem_id),
        order_by=(trust, sa.case((goes, 1), else_=0), newest, _M.id.desc()),
    )
    same = sa.and_(found.c.hardware_id == _M.hardware_id, found.c.problem_id == _M.problem_id)
    rows = (
        sa.select(_M.id, sa.case((goes, 1), else_=0).label("goes"), place.label("place"))
        .select_from(found.join(schema.measurements, same))
        .subquery()
    )
    return sa.select(rows.c.id).where(rows.c.goes == 1, rows.c.place > keep).order_by(rows.c.id)


def _shares(connection: sa.Connection, ids: Sequence[int]) -> list[Share]:
    found: dict[tuple[str, str | None], Share] = {}
    timings = sa.select(sa.func.count()).where(schema.timings.c.measurement_id == _M.id).scalar_subquery()
    for some in _some(ids):
        query = (
            sa.select(
                schema.hardware.c.name,
                _M.dataset,
                sa.func.count(),
                sa.func.sum(timings),
                sa.func.min(_M.ingested_at),
                sa.func.max(_M.ingested_at),
            )
            .join(schema.hardware, schema.hardware.c.id == _M.hardware_id)
            .where(_M.id.in_(some))
            .group_by(schema.hardware.c.name, _M.dataset)
        )
        for name, dataset, measurements, count, *times in connection.execute(query):
            oldest, newest = (with_zone(moment).astimezone(UTC) for moment in times)
            share = Share(name, dataset, measurements, int(count), oldest, newest)
            found[share.hardware, share.dataset] = _together(found.get((share.hardware, share.dataset)), share)
    return sorted(found.values(), key=lambda share: (share.hardware, share.dataset or ""))


def _together(one: Share | None, other: Share) -> Share:
    if one is None:
        return other
    return Share(
        one.hardware,
        one.dataset,
        one.measurements + other.measurements,
        one.timings + other.timings,
        min(one.oldest, other.oldest),
        max(one.newest, other.newest),
    )


def _weighed(engine: sa.Engine, ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield each id with the weight of deleting it, in timings. A measurement without timings has a weight too."""
    number = schema.timings.c.measurement_id
    least = _TIMINGS_AT_ONCE // _MEASUREMENTS_AT_ONCE
    for some in _some(ids):
        query = sa.select(number, sa.func.count()).where(number.in_(some)).group_by(number)
        with engine.connect() as connection:
            counts: dict[int, int] = {row[0]: row[1] for row in connection.execute(query)}
        yield from ((one, max(counts.get(one, 0), least)) for one in some)


def _some(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[start : start + _MEASUREMENTS_AT_ONCE] for start in range(0, len(ids), _MEASUREMENTS_AT_ONCE))
