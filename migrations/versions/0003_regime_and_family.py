"""Say what surrounded a kernel's timed launches, and which family of problems a measurement was swept for.

Sweeps that hid launches behind a flush always flushed by writing. The problems of the first bundled data set have
their families in a file beside this one. An older torch-diode kept what newer records say of both in ``extra``.

Revision: 0003, after 0002
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
# Nothing: what an upgrade would not find again goes to ``extra``, where it takes it from.
LOSES: dict[str, str] = {}

DATASET = "h200-2026-11"
FAMILIES = Path(__file__).with_name("0003_families.txt")
WRITE_FLUSH = "write_flush"
MOST_TEXT = 4096

problems = sa.table("problems", sa.column("id", sa.BigInteger), sa.column("key", sa.LargeBinary))
measurements = sa.table(
    "measurements",
    sa.column("id", sa.BigInteger),
    sa.column("problem_id", sa.BigInteger),
    sa.column("source", sa.String),
    sa.column("flush_l2", sa.Boolean),
    sa.column("launch_hidden", sa.Boolean),
    sa.column("regime", sa.String),
    sa.column("family", sa.String),
    sa.column("dataset", sa.String),
    sa.column("extra", sa.JSON(none_as_null=True)),
)
columns = measurements.c
FLUSHED_BY_WRITING = sa.and_(columns.source == "sweep", columns.flush_l2.is_(True), columns.launch_hidden.is_(True))
BY_ID = sa.update(measurements).where(columns.id == sa.bindparam("row"))


def upgrade() -> None:
    op.add_column("measurements", sa.Column("regime", sa.String()))
    op.add_column("measurements", sa.Column("family", sa.String()))
    connection = op.get_bind()
    connection.execute(sa.update(measurements).where(FLUSHED_BY_WRITING).values(regime=WRITE_FLUSH))
    families = _bundled_families(connection)
    bundled = connection.execute(sa.select(columns.id, columns.problem_id).where(columns.dataset == DATASET))
    _change(connection, [{"row": number, "family": families.get(problem)} for number, problem in bundled])
    _take_from_extra(connection)


def downgrade() -> None:
    _put_into_extra(op.get_bind())
    # Without batch mode: it would make the table anew, and with it the numbers that are never used twice.
    op.drop_column("measurements", "family")
    op.drop_column("measurements", "regime")


def _bundled_families(connection: sa.Connection) -> dict[int, str]:
    """Return the families of the bundled data set's problems by the problems' ids."""
    lines = FAMILIES.read_text(encoding="utf-8").splitlines()
    by_key = dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))
    rows = connection.execute(sa.select(problems.c.id, problems.c.key))
    return {number: by_key[bytes(key).hex()] for number, key in rows if bytes(key).hex() in by_key}


def _change(connection: sa.Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(BY_ID, rows)


def _take_from_extra(connection: sa.Connection) -> None:
    text = sa.cast(columns.extra, sa.String)
    told = sa.or_(text.contains('"regime"'), text.contains('"family"'))
    changed = []
    for row in connection.execute(sa.select(columns.id, columns.regime, columns.family, columns.extra).where(told)):
        extra: dict[str, Any] = dict(row.extra)
        regime, family = row.regime, row.family
        method = extra.get("timing_method")
        if isinstance(method, dict) and _is_name(method.get("regime")):
            regime = method["regime"]
            extra["timing_method"] = {name: value for name, value in method.items() if name != "regime"}
            if not extra["timing_method"]:
                del extra["timing_method"]
        if _is_name(extra.get("family")):
            family = extra.pop("family")
        changed.append({"row": row.id, "regime": regime, "family": family, "extra": extra or None})
    _change(connection, changed)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT and "\0" not in value


def _put_into_extra(connection: sa.Connection) -> None:
    families = _bundled_families(connection)
    is_derived = sa.and_(columns.regime == WRITE_FLUSH, FLUSHED_BY_WRITING).label("is_derived")
    query = sa.select(measurements, is_derived).where(
        sa.or_(sa.and_(columns.regime.is_not(None), sa.not_(is_derived.element)), columns.family.is_not(None))
    )
    changed = []
    for row in connection.execute(query):
        extra: dict[str, Any] = dict(row.extra or {})
        if row.regime is not None and not row.is_derived:
            method = extra.get("timing_method")
            extra["timing_method"] = {**(method if isinstance(method, dict) else {}), "regime": row.regime}
        derived = families.get(row.problem_id) if row.dataset == DATASET else None
        if row.family not in {None, derived}:
            extra["family"] = row.family
        if extra != (row.extra or {}):
            changed.append({"row": row.id, "extra": extra})
    _change(connection, changed)
