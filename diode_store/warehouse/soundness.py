"""Check that the facts refer to rows that exist, which no constraint of the database ensures.

``timings`` and ``metric_values`` have no foreign keys, which would cost too much at every insert, so this is checked
on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from diode_store.command_line.render import counted
from diode_store.warehouse import schema

if TYPE_CHECKING:
    from collections.abc import Iterator


_AT_ONCE = 1_000


def broken_facts(engine: sa.Engine) -> list[str]:
    """Return the faults of the tables of facts, a line each; reads all rows.

    Raises:
        DatabaseError: the database cannot be read.
    """
    measurements, timings = schema.measurements.c, schema.timings.c
    # NOT EXISTS and not NOT IN, which PostgreSQL runs row by row against everything once it exceeds its memory.
    same = timings.measurement_id == measurements.id
    measured = sa.exists().where(same).correlate(schema.timings)
    known = sa.exists().where(schema.configs.c.id == timings.config_id).correlate(schema.timings)
    timed = sa.exists().where(same).correlate(schema.measurements)
    orphans = sa.select(sa.func.count()).select_from(schema.timings).where(~measured)
    strangers = sa.select(sa.func.count()).select_from(schema.timings).where(~known)
    empty = sa.select(sa.func.count()).select_from(schema.measurements).where(~timed)
    values = schema.metric_values.c
    of_a_timing = sa.and_(timings.measurement_id == values.measurement_id, timings.config_id == values.config_id)
    is_timed = sa.exists().where(of_a_timing).correlate(schema.metric_values)
    is_named = sa.exists().where(schema.metrics.c.id == values.metric_id).correlate(schema.metric_values)
    untimed = sa.select(sa.func.count()).select_from(schema.metric_values).where(~is_timed)
    nameless = sa.select(sa.func.count()).select_from(schema.metric_values).where(~is_named)
    undead = sa.select(sa.func.count()).where(measurements.uid == schema.tombstones.c.uid)
    undead_decisions = sa.select(sa.func.count()).where(schema.decisions.c.uid == schema.tombstones.c.uid)

    def found() -> Iterator[str]:
        with engine.connect() as connection:
            for query, what, problem in (
                (orphans, "timing", "of measurements that are not there"),
                (strangers, "timing", "of configs that are not there"),
                (empty, "measurement", "without any timing"),
                (untimed, "metric value", "of timings that are not there"),
                (nameless, "metric value", "of metrics that are not there"),
                (undead, "measurement", "both there and deleted"),
                (undead_decisions, "decision", "both there and deleted"),
            ):
                number = connection.scalar(query) or 0
                if number:
                    yield f"{counted(number, what)} {problem}"
            if strange := _with_unknown_configs(connection):
                yield f"{counted(strange, 'decision')} of configs that are not there"

    return list(found())


def _with_unknown_configs(connection: sa.Connection) -> int:
    """Return the number of decisions that kept missing configs: their ids are in JSON, which has no foreign keys."""
    known = set(connection.scalars(sa.select(schema.configs.c.id)))
    rows = connection.execution_options(yield_per=_AT_ONCE).scalars(sa.select(schema.decisions.c.kept))
    return sum(not known.issuperset(config_id for config_id, _ in kept) for kept in rows)
