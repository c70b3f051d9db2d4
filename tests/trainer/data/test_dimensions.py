"""Named dimensions reach the trainer from the warehouse and from records, and unknown ops are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import H200, contents
from synthetic_ops import NEW_OPS, columns_of, example_of, shape_of

from diode_store.errors import DatasetError
from diode_store.ops import Problem, TensorSpec
from diode_store.ops.inputs import plain_problem
from diode_store.records import Environment, Measurement, Source, Timing, TimingMethod
from diode_trainer.data.dataset import UNKNOWN_OPS
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.from_warehouse import ExampleFilter, load_warehouse
from diode_trainer.data.measured import load_measured
from diode_trainer.data.sources import load

if TYPE_CHECKING:
    from diode_store.records import ProblemShape
    from diode_store.warehouse.store import Store

SHAPES = (
    *(shape_of(op, 64, 128, 256) for op in NEW_OPS),
    shape_of("grouped_mm", 64, 128, 256, skew=1.0),
    shape_of("scaled_mm", 64, 128, 256, scaling="1x128/128x128", fast_accum=False),
)
METHOD = TimingMethod(launch_hidden=True, regime="read_flush")


def measurement(number: int, shape: ProblemShape) -> Measurement:
    """Return a measurement of a problem with plain inputs."""
    example = example_of(shape, np.random.default_rng(number))
    times = enumerate(example.runtime_us.tolist())
    return _measurement(
        number, plain_problem(shape), tuple(Timing(example.columns.config(i), time) for i, time in times)
    )


def unknown(number: int) -> Measurement:
    """Return a measurement of an op that no table knows."""
    spec = TensorSpec("bfloat16", (64, 64 + number), (64 + number, 1))
    columns = columns_of("mm_plus_mm")
    return _measurement(
        number, Problem.create("attention_of_tomorrow", (spec, spec)), (Timing(columns.config(1), 20.0),)
    )


def _measurement(number: int, problem: Problem, timings: tuple[Timing, ...]) -> Measurement:
    uid, environment = number.to_bytes(16, "big"), Environment(torch="2.13.0")
    return Measurement(uid, H200, environment, problem, timings, Source.SWEEP, timing_method=METHOD)


def test_dimensions_are_the_same_from_everywhere(store: Store, database_url: str) -> None:
    """The columns of the warehouse give the shapes that the records have, each a problem of its own."""
    measurements = [measurement(number, shape) for number, shape in enumerate(SHAPES)]
    store.write(measurements)
    dataset = load_warehouse(database_url, ExampleFilter("h200")).dataset
    assert {example.shape for example in dataset} == set(SHAPES)
    assert contents(dataset) == contents(load_measurements(measurements, "here"))
    measured = load_measured(database_url, "h200").problems
    assert {problem.shape for problem in measured} == set(SHAPES)


def test_one_op_can_be_asked_for(store: Store, database_url: str) -> None:
    """The filter takes the new ops like the older ones."""
    store.write(measurement(number, shape) for number, shape in enumerate(SHAPES))
    dataset = load_warehouse(database_url, ExampleFilter("h200", op="scaled_mm")).dataset
    assert [example.shape.op for example in dataset] == ["scaled_mm"] * 2


def test_unknown_ops_are_counted(store: Store, database_url: str) -> None:
    """They are left out, with one line for a person and an entry of the lineage."""
    measurements = [measurement(0, SHAPES[0]), unknown(1), unknown(2)]
    store.write(measurements)
    loaded = load(database_url, ExampleFilter("h200"))
    assert loaded.dataset.lineage[UNKNOWN_OPS] == {"attention_of_tomorrow": 2}
    assert loaded.notes[-1] == ("left out: ops that this torch-diode does not know: attention_of_tomorrow (2 problems)")
    assert load_measurements(measurements, "here").lineage[UNKNOWN_OPS] == {"attention_of_tomorrow": 2}
    assert [problem.shape for problem in load_measured(database_url, "h200").problems] == [SHAPES[0]]


def test_nothing_but_unknown_ops() -> None:
    """The error says that they do not count."""
    with pytest.raises(DatasetError, match=r"holds no usable measurement .*nor those of unknown ops"):
        load_measurements([unknown(1)], "here")
