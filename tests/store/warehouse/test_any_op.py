"""A warehouse holds problems of any op, and metrics beside times, on both databases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from any_op import CONV, PROBLEMS, grouped, rows, scaled

import samples
from diode_store.cache.source import select
from diode_store.errors import RecordError
from diode_store.ops import OPS, Op
from diode_store.records import Metric, Problem
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.store import Store
from diode_store.warehouse.tombstones import bury
from diode_store.wire import codec

if TYPE_CHECKING:
    from collections.abc import Iterator

DERIVED = ("dtype", "b", "m", "n", "k", "layout", "dimensions")
NEW = Op("conv", "triton::conv", vendors=("aten::conv",), is_scaled=True)
"""An op that a later version knows; its scales say how it is scaled."""


def problem_rows(store: Store) -> list[tuple[Any, ...]]:
    """Return the derived columns of every problem, in the order in which they were measured."""
    columns, measured = schema.problems.c, schema.measurements.c
    with store.engine.connect() as connection:
        query = sa.select(*(columns[name] for name in DERIVED)).join(schema.measurements).order_by(measured.id)
        return [tuple(row) for row in connection.execute(query)]


def test_problems_of_every_op_come_back(any_store: Store) -> None:
    """Inputs, scalars and keys are as they were, for an unknown op too."""
    made = [samples.measurement(number, problem=problem) for number, (problem, _) in enumerate(PROBLEMS.values())]
    report = any_store.write(made)
    assert (report.measurements, report.unknown_ops) == (len(made), (("conv", 2),))
    assert list(iter_measurements(any_store.engine)) == made
    assert any_store.write(made).duplicates == len(made)


def test_dimensions_are_a_sorted_object(any_store: Store) -> None:
    """Sizes and dimensions follow from the inputs; those of an unknown op are NULL."""
    problems = (samples.matmul(64, 256, 128), scaled(), grouped(1001, skew=1.5), CONV)
    any_store.write([samples.measurement(number, problem=problem) for number, problem in enumerate(problems)])
    by_row = {"fast_accum": True, "out_dtype": "bfloat16", "scaling": "row"}
    assert problem_rows(any_store) == [
        ("bfloat16", 1, 64, 256, 128, "nn", None),
        ("float8_e4m3fn", 1, 16, 6144, 4096, "nt", by_row),
        ("bfloat16", 8, 125, 4096, 2048, "nt", {"form": "2d3d", "skew": 1.5, "total": 1001}),
        ("bfloat16", None, None, None, None, None, None),
    ]
    with any_store.engine.connect() as connection:
        query = "SELECT CAST(dimensions AS TEXT) FROM problems WHERE op = 'scaled_mm'"
        text = connection.exec_driver_sql(query).scalar()
    assert text == '{"fast_accum": true, "out_dtype": "bfloat16", "scaling": "row"}'


def later(problem: Problem) -> Problem:
    """Return the problem as a process that has not looked at it sees it."""
    return Problem(problem.op, problem.inputs, problem.scalars)


SCALED_CONV = Problem("conv", (rows("int8", 8, 4), rows("int8", 4, 16), rows("float32", 8, 1), rows("float32", 1, 16)))
KNOWN = ("int8", 1, 8, 16, 4, "nn", {"scaling": "row"})


def test_a_known_op_fills_what_was_unknown(any_store: Store, any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version that knows the op fills in the row when the problem is delivered again."""
    any_store.write([samples.measurement(1, problem=SCALED_CONV)])
    assert problem_rows(any_store) == [("int8", *[None] * 6)]
    monkeypatch.setitem(OPS, "conv", NEW)
    with Store.open(any_url) as upgraded:
        upgraded.write([samples.measurement(2, problem=later(SCALED_CONV)), samples.measurement(3)])
        assert problem_rows(upgraded)[0] == KNOWN
        upgraded.write([samples.measurement(4, problem=later(SCALED_CONV))])
        assert problem_rows(upgraded)[0] == KNOWN
        assert upgraded.counts()["problems"] == 2


def test_an_upgrade_fills_what_was_unknown(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`diode db upgrade` of a later version does so too; inputs that do not fit stay unknown."""
    odd = Problem("conv", (rows("int8", 8, 4, 2), rows("int8", 7)))
    any_store.write([samples.measurement(1, problem=SCALED_CONV), samples.measurement(2, problem=odd)])
    monkeypatch.setitem(OPS, "conv", NEW)
    migrate.upgrade(any_store.engine)
    assert problem_rows(any_store) == [KNOWN, ("int8", *[None] * 6)]
    assert not later(odd).is_known
    assert [each.problem for each in iter_measurements(any_store.engine)] == [SCALED_CONV, odd]


def test_going_back_drops_unknown_ops(any_store: Store) -> None:
    """The older schema has no room for an unknown op: its rows are counted and go, and others stay."""
    any_store.write([samples.measurement(1), samples.measurement(2, problem=CONV, **samples.EVERY_FIELD)])
    lost = {loss.table: loss.rows for loss in migrate.losses(any_store.engine, "0001")}
    assert lost == {"metric_values": 4, "metrics": 2, "problems": 1}
    migrate.downgrade(any_store.engine, "0001")
    with any_store.engine.connect() as connection:
        counts = {
            table: connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar()  # noqa: S608 - our own names
            for table in ("problems", "measurements", "timings")
        }
    assert counts == {"problems": 1, "measurements": 1, "timings": 3}
    migrate.upgrade(any_store.engine)
    assert [each.uid for each in iter_measurements(any_store.engine)] == [samples.measurement(1).uid]


def test_metrics_come_back(any_store: Store) -> None:
    """Each timing has its values again, whichever order the kernels were timed in."""
    one = samples.measurement(1, **samples.EVERY_FIELD)
    other = samples.measurement(2, timings=one.timings[::-1], metrics=(Metric("spills", "B", (1.0, 2.0, None)),))
    with_unit = samples.measurement(3, metrics=(Metric("spills", "registers", (1.0, 2.0, 3.5)),))
    any_store.write([one, other, with_unit, samples.measurement(4)])
    found = list(iter_measurements(any_store.engine))
    assert found[0] == one
    assert found[1] == other.with_timings(one.timings)
    assert found[2:] == [with_unit, samples.measurement(4)]
    with any_store.engine.begin() as connection:
        bury(connection, [1, 2], "prune")
        left = connection.execute(sa.select(schema.metric_values.c.measurement_id).distinct()).scalars().all()
    assert left == [3]


def plan_of(store: Store, query: str) -> str:
    """Return how the database reads the rows of a query."""
    with store.engine.connect() as connection:
        if store.has_server:
            connection.exec_driver_sql("SET enable_seqscan = off")  # a few rows are read faster than an index
            return "\n".join(connection.exec_driver_sql(f"EXPLAIN {query}").scalars())
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}").all()
        return "\n".join(str(row[-1]) for row in rows)


def test_marks_are_read_through_their_index(any_store: Store) -> None:
    """A sync need not read every measurement to find the marked ones."""
    any_store.write([samples.measurement(number) for number in range(20)])
    any_store.write([samples.measurement(20, flags=("throttled",))])
    assert "ix_measurements_marked" in plan_of(any_store, select("marks"))


def bad_metrics() -> Iterator[tuple[tuple[Metric, ...], str]]:
    """Yield metrics of a measurement with three timings, and the message about them."""
    yield (Metric("spills", "B", (1.0, 2.0)),), "metric spills must hold a value for each of 3 timings, not 2"
    yield (Metric("spills", "B", (None,) * 3),), "metric spills has no value; leave it out"
    yield (Metric("two words", "B", (1.0,) * 3),), "a metric's name must be an identifier, not 'two words'"
    yield (Metric("größe", "B", (1.0,) * 3),), "a metric's name must be an identifier, not 'größe'"
    yield (
        (Metric("spills", "B", (1.0, math.nan, 2.0)),),
        "metric spills must be a number from -1e\\+18 to 1e\\+18, not nan",
    )
    yield (Metric("spills", "B", (1.0, math.inf, 2.0)),), "metric spills must be a number .*, not inf"
    yield (Metric("spills", "B", (1, True, 2)),), "metric spills must be a number .*, not True"
    yield (Metric("spills", "B", (1, 10**400, 2)),), "metric spills must be a number .*, not 1000"
    yield (Metric("spills", "B" * 101, (1.0,) * 3),), "metric spills: unit must be text of at most 100 characters"
    yield (Metric("spills", None, (1.0,) * 3),), "metric spills: unit must be text, not None"  # type: ignore[arg-type]
    yield (Metric("a", "B", (1.0,) * 3), Metric("a", "W", (1.0,) * 3)), "a measurement has each metric once"
    yield tuple(Metric(f"m{i}", "B", (1.0,) * 3) for i in range(33)), "a measurement has at most 32 metrics, not 33"


@pytest.mark.parametrize(("metrics", "message"), list(bad_metrics()))
def test_bad_metrics_are_refused(metrics: tuple[Metric, ...], message: str) -> None:
    """A measurement says which metric is wrong, whoever makes it."""
    with pytest.raises(RecordError, match=message):
        samples.measurement(1, metrics=metrics)


def test_other_timings_keep_their_metrics() -> None:
    """Metrics follow their configs; one without any value left goes."""
    one = samples.measurement(1, **samples.EVERY_FIELD)
    first, second, third = one.timings
    registers = Metric("registers_per_thread", "", (255, 32))
    assert one.with_timings((third, second)).metrics == (registers, Metric("spills", "B", (1.5, None)))
    assert one.with_timings((second,)).metrics == (Metric("registers_per_thread", "", (32,)),)
    assert replace(one, metrics=()).with_timings((first,)).metrics == ()


def test_a_record_has_its_metrics_as_columns() -> None:
    """A value that all timings share is written once, and a record without metrics has no bytes for them."""
    plain = samples.measurement(1, runtimes=tuple(float(us) for us in range(1, 201)))
    shared = replace(plain, metrics=(Metric("spills", "B", (0.0,) * 200),))
    assert codec.decode(codec.encode(shared)) == shared
    assert len(codec.encode(shared)) - len(codec.encode(plain)) < 40
    assert b"metrics" not in codec.encode(plain)
