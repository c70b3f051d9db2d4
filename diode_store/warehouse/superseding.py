"""Let a sweep replace an earlier one: where both measured a problem, the views show only the newer measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from diode_store.command_line.render import printable
from diode_store.errors import SupersedeError
from diode_store.warehouse import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_LIST = 'list the sweeps with `diode query "SELECT DISTINCT sweep_id FROM measurements"`'


@dataclass(frozen=True)
class Superseding:
    """Measurements that a sweep would replace."""

    measurements: int
    """Measurements of the earlier sweep whose problem the newer one measured on the same hardware and software."""
    left: int
    """Measurements of the earlier sweep that the newer one did not repeat; they stay unchanged."""


def count_superseded(connection: sa.Connection, old: str, new: str) -> Superseding:
    """Count the measurements that ``supersede`` would replace, and those that it would leave.

    Raises:
        SupersedeError: the sweeps are the same, or one has no measurement.
    """
    if old == new:
        raise SupersedeError
    columns = schema.measurements.c
    number = sa.select(sa.func.count()).select_from(schema.measurements)
    for sweep in (old, new):
        if not connection.scalar(number.where(columns.sweep_id == sweep)):
            raise SupersedeError(f"there is no measurement of sweep {printable(sweep)}; {_LIST}")
    present = number.where(*_present(old))
    taken = connection.scalar(present.where(_successor(new).exists())) or 0
    return Superseding(taken, (connection.scalar(present) or 0) - taken)


def supersede(connection: sa.Connection, old: str, new: str) -> int:
    """Mark the measurements of sweep ``old`` that ``new`` repeated; return their number.

    Only trusted measurements of ``new`` replace others.
    """
    successor = _successor(new)
    change = sa.update(schema.measurements).where(*_present(old)).where(successor.exists())
    return connection.execute(change.values(superseded_by=successor.scalar_subquery())).rowcount


def restore(connection: sa.Connection, old: str) -> int:
    """Let every measurement of sweep ``old`` count again; return the number that had been superseded."""
    columns = schema.measurements.c
    change = sa.update(schema.measurements).where(columns.sweep_id == old, columns.superseded_by.is_not(None))
    return connection.execute(change.values(superseded_by=None)).rowcount


def _present(sweep: str) -> Sequence[sa.ColumnElement[bool]]:
    columns = schema.measurements.c
    return columns.sweep_id == sweep, columns.superseded_by.is_(None)


def _successor(sweep: str) -> sa.Select[Any]:
    """Return a SELECT of the newest measurement of ``sweep`` that repeats the outer query's measurement."""
    newer = schema.measurements.alias("newer").c
    columns = schema.measurements.c
    same = (newer[name] == columns[name] for name in ("hardware_id", "environment_id", "problem_id"))
    trusted = (~newer.is_replay, newer.flags.is_(None), newer.superseded_by.is_(None))
    query = sa.select(newer.uid).where(newer.sweep_id == sweep, *same, *trusted)
    return query.order_by(newer.id.desc()).limit(1).correlate(schema.measurements)
