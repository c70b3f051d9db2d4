"""Hardware, environments, problems and configs as rows: stored once, found again by content key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from diode_store.ops import OPS
from diode_store.records import CONFIG_COLUMNS, Environment, Hardware, KernelConfig, Problem, TensorSpec
from diode_store.warehouse import record_fields, schema
from diode_store.warehouse.bulk import insert_missing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

_R = TypeVar("_R", Hardware, Environment, Problem, KernelConfig)

_LOOK_UP_AT_ONCE = 500
# A daemon runs for months and sees ever new problems; starting over costs one look-up each.
_MOST_CACHED = 50_000

_HARDWARE_IDENTITY = frozenset({"vendor", "name", "arch", "multiprocessors"})
_DERIVED = ("b", "m", "n", "k", "layout", "dimensions")
"""Columns of a problem that follow from its inputs if its op is known."""
_HARDWARE_ATTRIBUTES = tuple(name for name in record_fields.HARDWARE if name not in _HARDWARE_IDENTITY)


def hardware_values(hardware: Hardware) -> dict[str, Any]:
    """Return the row of ``hardware``."""
    return {
        "key": hardware.key,
        **{name: getattr(hardware, name) for name in record_fields.HARDWARE},
        "extra": dict(hardware.extra) or None,
    }


def environment_values(environment: Environment) -> dict[str, Any]:
    """Return the row of ``environment``."""
    return {
        "key": environment.key,
        **{name: getattr(environment, name) for name in record_fields.ENVIRONMENT},
        "template_hashes": dict(environment.template_hashes) or None,
        "extra": dict(environment.extra) or None,
    }


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return the row of ``problem``; its derived columns are NULL if this version does not know the op."""
    shape = problem.shape if problem.is_known else None
    return {
        "key": problem.key,
        "op": problem.op,
        "dtype": problem.inputs[0].dtype if shape is None else shape.dtype,
        **{name: getattr(shape, name, None) for name in _DERIVED},
        "dimensions": (dict(shape.dimensions) or None) if shape else None,
        "inputs": [[spec.dtype, list(spec.size), list(spec.stride)] for spec in problem.inputs],
        "scalars": [list(pair) for pair in problem.scalars],
        "extra": dict(problem.extra) or None,
    }


def config_values(config: KernelConfig) -> dict[str, Any]:
    """Return the row of ``config``."""
    return {
        "key": config.key,
        **{name: getattr(config, name) for name in CONFIG_COLUMNS},
        "kwargs": [list(pair) for pair in config.kwargs],
        "extra": dict(config.extra) or None,
    }


class Dimension(Generic[_R]):
    """One dimension table, and the ids this process knows of it.

    ``ids`` is keyed by whole records. A record with an attribute that the cached one lacks is looked up again, and the
    lookup fills in the row.
    """

    def __init__(
        self,
        table: sa.Table,
        values: Callable[[_R], dict[str, Any]],
        fillable: tuple[str, ...],
        gathered: str | None = None,
        derived: tuple[str, ...] = (),
    ) -> None:
        self._gathered = gathered
        self._derived = derived
        self.ids: dict[_R, int] = {}
        self._table = table
        self._values: Callable[[_R], dict[str, Any]] = values
        self._fillable = fillable

    def missing(self, records: Iterable[_R]) -> dict[_R, None]:
        """Return the records without a known id, once each; known ids stay known until the next call."""
        ids = self.ids
        # Clear only here: a batch whose ids are known must not lose them when it adds new ones.
        if len(ids) > _MOST_CACHED:
            ids.clear()
        return {record: None for record in records if record not in ids}

    def insert(self, connection: sa.Connection, records: Iterable[_R]) -> dict[_R, int]:
        """Insert the new records and return every record's id; cache the ids only after the commit.

        Rows go in sorted by key. Concurrent writers of the same new rows then wait for each other in one order, and
        cannot deadlock.
        """
        keys = {record: record.key for record in records}
        if not keys:
            return {}
        ids = self._ids_by_key(connection, set(keys.values()))
        new = {key: record for record, key in keys.items() if key not in ids}
        if new:
            insert_missing(connection, self._table, [self._values(record) for record in new.values()], "key")
            ids.update(self._ids_by_key(connection, set(new)))
        if self._gathered is not None:
            self._gather(connection, keys, self._gathered)
        self._fill(connection, keys)
        return {record: ids[key] for record, key in keys.items()}

    def _ids_by_key(self, connection: sa.Connection, keys: Collection[bytes]) -> dict[bytes, int]:
        found = select_by_key(connection, self._table.c.key, list(keys), self._table.c.id)
        return {bytes(row.key): int(row.id) for row in found}

    def remember(self, ids: dict[_R, int]) -> None:
        """Cache ids that are committed."""
        self.ids.update(ids)

    def _fill(self, connection: sa.Connection, records: Iterable[_R]) -> None:
        """Fill in values that an earlier record did not know: each row at once, in the order of the keys.

        One pass for each attribute would lock rows in several orders, and concurrent writers could deadlock.
        """
        every = list(records)
        given = {record for record in every if any(getattr(record, name) for name in self._fillable)}
        rows = [self._values(record) for record in every if record in given]
        rows += self._derivable(connection, [record for record in every if record not in given])
        if rows:
            rows.sort(key=lambda row: bytes(row["key"]))
            values = [{"the_key": row["key"], **{f"new_{n}": row[n] for n in self._filled}} for row in rows]
            connection.execute(self._fill_statement(), values)

    def _derivable(self, connection: sa.Connection, records: Sequence[_R]) -> list[dict[str, Any]]:
        """Return the rows whose derived columns the warehouse lacks, as it does if its writer did not know the op."""
        if not self._derived or not records:
            return []
        columns = [self._table.c[name] for name in self._derived]
        by_key = {record.key: record for record in records}
        held = select_by_key(connection, self._table.c.key, list(by_key), *columns)
        lacking = (row for row in held if None in row[1:])
        rows = [(row, self._values(by_key[bytes(row.key)])) for row in lacking]
        return [new for row, new in rows if any(getattr(row, n) is None and new[n] is not None for n in self._derived)]

    def _gather(self, connection: sa.Connection, records: Iterable[_R], name: str) -> None:
        """Add to a map of each row what a record has beyond it: one measurement knows the templates that it timed."""
        wanted: dict[bytes, dict[str, Any]] = {}
        for record in records:
            there = wanted.setdefault(record.key, {})
            there.update({key: value for key, value in getattr(record, name).items() if key not in there})
        column, key = self._table.c[name], self._table.c.key
        # Lock all rows that may be filled, in the order of their keys, as PostgreSQL holds the locks until the commit.
        # ``key_share`` still lets measurements of other batches refer to them, in any order.
        rows = sa.select(key, column).where(key.in_(sorted(wanted))).order_by(key)
        held = {bytes(row[0]): row[1] or {} for row in connection.execute(rows.with_for_update(key_share=True))}
        more = [{"the_key": k, "all": {**wanted[k], **held[k]}} for k in held if wanted[k].keys() - held[k].keys()]
        if more:
            new = sa.bindparam("all", type_=column.type)
            connection.execute(sa.update(self._table).where(key == sa.bindparam("the_key")).values({name: new}), more)

    @property
    def _filled(self) -> tuple[str, ...]:
        return (*self._fillable, *self._derived, *(("dtype",) if self._derived else ()))

    def _fill_statement(self) -> sa.Update:
        columns = self._table.c
        new = {name: sa.bindparam(f"new_{name}", type_=columns[name].type) for name in self._filled}
        news = [sa.and_(columns[name].is_(None), value.is_not(None)) for name, value in new.items()]
        filled: dict[str, sa.ColumnElement[Any]] = {
            name: sa.func.coalesce(columns[name], value) for name, value in new.items()
        }
        if self._derived:
            # The dtype of an unknown op is that of its first input, which need not be A.
            filled["dtype"] = sa.case((columns["m"].is_(None), new["dtype"]), else_=columns["dtype"])
        wanted = sa.and_(columns.key == sa.bindparam("the_key"), sa.or_(*news))
        return sa.update(self._table).where(wanted).values(filled)


class Dimensions:
    """The four dimension tables, in the one order in which every writer inserts into them."""

    def __init__(self) -> None:
        self.hardware = Dimension(schema.hardware, hardware_values, (*_HARDWARE_ATTRIBUTES, "extra"))
        self.environments = Dimension(
            schema.environments, environment_values, ("template_hashes", "extra"), gathered="template_hashes"
        )
        self.problems = Dimension(schema.problems, problem_values, ("extra",), derived=_DERIVED)
        self.configs = Dimension(schema.configs, config_values, ("extra",))
        self.in_order: Sequence[Dimension[Any]] = (self.hardware, self.environments, self.problems, self.configs)

    def forget(self) -> None:
        """Drop every cached id, when they may no longer be valid."""
        for dimension in self.in_order:
            dimension.ids.clear()


def fill_problems(connection: sa.Connection) -> None:
    """Fill in the derived columns of problems whose op was not known when they were stored, and is now."""
    table = schema.problems
    has_dimensions = [name for name, op in OPS.items() if op.has_dimensions]
    lacking = sa.or_(table.c.m.is_(None), sa.and_(table.c.dimensions.is_(None), table.c.op.in_(has_dimensions)))
    rows = connection.execute(sa.select(table).where(table.c.op.in_(OPS), lacking)).mappings()
    found = {bytes(row["key"]): problem_of_row(row) for row in rows}
    # A key that differs would be of inputs that this version normalizes.
    Dimensions().problems.insert(connection, [problem for key, problem in found.items() if problem.key == key])


def problem_of_row(row: Mapping[Any, Any]) -> Problem:
    """Return the problem in a row of ``problems``."""
    inputs = tuple(TensorSpec(dtype, tuple(size), tuple(stride)) for dtype, size, stride in row["inputs"])
    return Problem(row["op"], inputs, tuple((name, value) for name, value in row["scalars"]), row["extra"] or {})


def select_by_key(
    connection: sa.Connection, key: sa.Column[Any], wanted: Sequence[bytes], *columns: sa.Column[Any]
) -> Iterator[sa.Row[Any]]:
    """Yield the key and ``columns`` of every row with a wanted key, in statements of bounded size."""
    if connection.dialect.name == "postgresql":
        some = sa.bindparam("wanted", type_=postgresql.ARRAY(sa.LargeBinary))
        query = sa.select(key, *columns).where(key == sa.func.any(some))
        yield from connection.execute(query, {"wanted": wanted})
        return
    names = ", ".join(column.name for column in (key, *columns))
    for start in range(0, len(wanted), _LOOK_UP_AT_ONCE):
        some_keys = tuple(wanted[start : start + _LOOK_UP_AT_ONCE])
        marks = ", ".join("?" * len(some_keys))
        # As text: SQLAlchemy would write the list each time, which takes three times as long as the look-up.
        query_text = f"SELECT {names} FROM {key.table} WHERE {key.name} IN ({marks})"  # noqa: S608 - our own names
        yield from connection.exec_driver_sql(query_text, some_keys)


def insert_for(connection: sa.Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return the database's own INSERT, which supports ON CONFLICT."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
