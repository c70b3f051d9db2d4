from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from synthetic import H200

import samples
from diode_store.errors import DatasetError, HardwareError
from diode_store.records import Environment, Measurement, Outcome, Source, Timing, TimingMethod
from diode_trainer.corrections.corrections import configs_of
from diode_trainer.data.measured import load_measured

if TYPE_CHECKING:
    from diode_store.warehouse.store import Store

HIDDEN = TimingMethod(launch_hidden=True, regime="read_flush")
TILE, OTHER = samples.triton_config(64), samples.triton_config(128)
TILE_KEY, OTHER_KEY = (("triton::mm", block_m, 64, 32, 8, 3, 4, False) for block_m in (64, 128))
_uids = iter(range(1, 1000))


def measurement(*timings: Timing, m: int = 64, method: TimingMethod | None = HIDDEN, **fields: Any) -> Measurement:
    """Return a measurement of an mm with M = ``m``."""
    made = Measurement(
        uid=next(_uids).to_bytes(16, "big"),
        hardware=H200,
        environment=Environment(torch="2.13.0"),
        problem=samples.matmul(m, 256, 128),
        timings=timings,
        source=Source.FEEDBACK,
        timing_method=method,
    )
    return replace(made, **fields)


def test_what_a_hook_left_to_time_counts(store: Store, database_url: str) -> None:
    """Unlike in training, compiles under a hook say something; replays and flagged ones do not."""
    store.write(
        [
            measurement(Timing(TILE, 10.0), choice_policy="hook:abc"),
            measurement(Timing(TILE, 99.0), is_replay=True),
            measurement(Timing(OTHER, 12.0), m=65),
        ]
    )
    found = load_measured(database_url, "h200")
    assert [device.name for device in found.matched] == ["NVIDIA H200"]
    assert [(p.shape.m, p.runtime_us.tolist(), configs_of(p.columns)) for p in found.problems] == [
        (64, [10.0], [TILE_KEY]),
        (65, [12.0], [OTHER_KEY]),
    ]


def test_times_of_a_config_are_counted(store: Store, database_url: str) -> None:
    """Of several the median is taken, without failures; what always failed is infinite."""
    failed = Timing(TILE, None, Outcome.RUNTIME_ERROR)
    never = Timing(OTHER, None, Outcome.OUT_OF_RESOURCES)
    store.write(measurement(first, never) for first in (Timing(TILE, 10.0), failed, Timing(TILE, 12.0)))
    (problem,) = load_measured(database_url, "h200").problems
    assert problem.runtime_us.tolist() == [11.0, math.inf]
    assert problem.count.tolist() == [2, 1]


def test_launches_that_were_timed(store: Store, database_url: str) -> None:
    """Where the launch was timed as well, short times are left out and counted, and long ones are noisier."""
    timed = TimingMethod(launch_hidden=False)
    store.write(
        [measurement(Timing(TILE, 20.0), Timing(OTHER, 40.0), method=timed), measurement(Timing(TILE, 20.0), m=65)]
    )
    found = load_measured(database_url, "h200")
    assert [(p.shape.m, p.runtime_us.tolist(), p.sigma.tolist()) for p in found.problems] == [
        (64, [40.0], [0.017]),
        (65, [20.0], [0.010]),
    ]
    assert found.too_short == 1


def test_regimes_are_not_mixed(store: Store, database_url: str) -> None:
    """Of a problem that was timed in two ways, the way counts that knows more of its configs."""
    graph = replace(HIDDEN, regime="graph")
    store.write([measurement(Timing(TILE, 10.0), Timing(OTHER, 11.0), method=graph), measurement(Timing(TILE, 15.0))])
    (problem,) = load_measured(database_url, "h200").problems
    assert sorted(problem.runtime_us.tolist()) == [10.0, 11.0]


def test_a_time_behind_a_flush_is_the_deployed_one(store: Store, database_url: str) -> None:
    """As a model predicts it, so that a correction is not of the flush; what did not run stays so."""
    flushed = replace(HIDDEN, regime="write_flush")
    store.write([measurement(Timing(TILE, 15.0), Timing(OTHER, None, Outcome.COMPILE_ERROR), method=flushed)])
    (problem,) = load_measured(database_url, "h200").problems
    assert sorted(problem.runtime_us.tolist()) == [11.0, math.inf]


def test_a_source_can_be_asked_for(store: Store, database_url: str) -> None:
    """Only its measurements count then; that there are none is said."""
    store.write([measurement(Timing(TILE, 10.0)), measurement(Timing(OTHER, 12.0), source=Source.SWEEP, m=65)])
    found = load_measured(database_url, "h200", source=Source.SWEEP)
    assert [problem.shape.m for problem in found.problems] == [65]
    with pytest.raises(DatasetError, match=r"^no measurements from profile on NVIDIA H200; collect some, or ingest"):
        load_measured(database_url, "h200", source=Source.PROFILE)


def test_nothing_but_short_times(store: Store, database_url: str) -> None:
    """When all times are too short to tell from their launches, the message says so."""
    store.write([measurement(Timing(TILE, 20.0), method=TimingMethod(launch_hidden=False))])
    with pytest.raises(
        DatasetError, match=r"^no measurements on NVIDIA H200 but 1 too short to tell from their launch"
    ):
        load_measured(database_url, "h200")


def test_unknown_hardware(store: Store, database_url: str) -> None:
    """A name that matches nothing is refused, and so is an empty warehouse."""
    with pytest.raises(DatasetError, match="the warehouse holds no measurements"):
        load_measured(database_url, "h200")
    store.write([measurement(Timing(TILE, 20.0))])
    with pytest.raises(HardwareError):
        load_measured(database_url, "b200")
