"""The views keep regimes apart: rows whose answer was worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import VENDOR, A, B, Warehouse

from diode_store.records import REGIMES, Environment, TimingMethod, regime_rank

if TYPE_CHECKING:
    from conftest import MakeMeasurement

NEWER = Environment(torch="2.13.0", triton="3.7.0")


def timed(regime: str | None) -> TimingMethod:
    """Return how a sweep times in a regime."""
    return TimingMethod("median", flush_l2=True, launch_hidden=True, regime=regime)


def in_two_regimes(views: Warehouse) -> None:
    """Measure one problem behind a flush that writes, where A wins, and in a graph, where all is faster and B wins."""
    views.measure({A: 50.0, B: 60.0, VENDOR: 100.0}, timing_method=timed("write_flush"))
    views.measure({A: 48.0, B: 40.0, VENDOR: 44.0}, timing_method=timed("graph"))


def rows(views: Warehouse, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query as tuples."""
    return [tuple(row.values()) for row in views.ask(sql)]


def test_fastest_configs(views: Warehouse) -> None:
    """Each regime has a winner of its own, and times of the two are not pooled."""
    in_two_regimes(views)
    found = rows(views, "SELECT regime, config_id, runtime_us, repeats, configs FROM fastest_configs")
    assert found == [("graph", "B", 40.0, 1, 3), ("write_flush", "A", 50.0, 1, 3)]


def test_an_unknown_regime_is_one_by_itself(views: Warehouse) -> None:
    """What nobody knows the regime of is pooled with its like, and with no other."""
    in_two_regimes(views)
    views.measure({A: 70.0}, timing_method=timed(None))
    views.measure({A: 80.0}, timing_method=TimingMethod())
    found = rows(views, "SELECT regime, config_id, runtime_us, repeats FROM fastest_configs")
    assert found == [("graph", "B", 40.0, 1), ("write_flush", "A", 50.0, 1), (None, "A", 75.0, 2)]


def test_fastest_by_template(views: Warehouse) -> None:
    """Slowdowns are over the best of the same regime: the vendor's 100 over 50, and its 44 over 40."""
    in_two_regimes(views)
    found = rows(views, "SELECT regime, template, runtime_us, rank, slowdown FROM fastest_by_template")
    assert found == [
        ("graph", "triton::mm", 40.0, 1, 1.0),
        ("graph", "aten::mm", 44.0, 2, 1.1),
        ("write_flush", "triton::mm", 50.0, 1, 1.0),
        ("write_flush", "aten::mm", 100.0, 2, 2.0),
    ]


def test_config_rank(views: Warehouse) -> None:
    """Places begin anew with each regime."""
    in_two_regimes(views)
    found = rows(views, "SELECT regime, config_id, rank, slowdown FROM config_rank")
    assert found == [
        ("graph", "B", 1, 1.0),
        ("graph", "vendor", 2, 1.1),
        ("graph", "A", 3, 1.2),
        ("write_flush", "A", 1, 1.0),
        ("write_flush", "B", 2, 1.2),
        ("write_flush", "vendor", 3, 2.0),
    ]


def test_vendor_gap(views: Warehouse) -> None:
    """Triton wins by 2 behind a flush that writes, and by 1.1 in a graph."""
    in_two_regimes(views)
    found = rows(views, "SELECT regime, triton_config_id, vendor_us, triton_us, speedup FROM vendor_gap")
    assert found == [("graph", "B", 44.0, 40.0, pytest.approx(1.1)), ("write_flush", "A", 100.0, 50.0, 2.0)]


def test_disagreements(views: Warehouse) -> None:
    """That a kernel is faster in a graph is no disagreement; that it is not the same in one twice is."""
    in_two_regimes(views)
    assert views.ask("FROM disagreements") == []
    views.measure({B: 50.0, A: 48.0}, timing_method=timed("graph"))
    found = rows(views, "SELECT regime, config_id, lowest_us, highest_us FROM disagreements")
    assert found == [("graph", "B", 40.0, 50.0)]


def test_regressions(views: Warehouse) -> None:
    """An environment is compared with another in the same regime only: in the graph B took 40, and takes 60."""
    in_two_regimes(views)
    views.measure({A: 48.0, B: 60.0}, timing_method=timed("graph"), environment=NEWER)
    views.measure({A: 500.0}, timing_method=timed(None), environment=NEWER)
    told = (
        "SELECT regime, scope, config_id_before, config_id_after, runtime_us_before, runtime_us_after FROM regressions"
    )
    assert rows(views, told) == [
        ("graph", "best", "B", "A", 40.0, 48.0),
        ("graph", "config", "B", "B", 40.0, 60.0),
    ]


def test_regressions_of_an_unknown_regime(views: Warehouse) -> None:
    """What nobody knows the regime of is compared with its like."""
    views.measure({A: 40.0}, timing_method=timed(None))
    views.measure({A: 60.0}, timing_method=timed(None), environment=NEWER)
    told = "SELECT regime, scope, runtime_us_before, runtime_us_after FROM regressions"
    assert rows(views, told) == [(None, "best", 40.0, 60.0), (None, "config", 40.0, 60.0)]


def test_coverage(views: Warehouse) -> None:
    """What was measured in a regime is counted by itself."""
    in_two_regimes(views)
    views.measure({A: 70.0})
    found = rows(views, "SELECT regime, problems, configs, measurements, timings FROM coverage")
    assert found == [("graph", 1, 3, 1, 3), ("write_flush", 1, 3, 1, 3), (None, 1, 1, 1, 1)]


def test_training_examples(views: Warehouse, make_measurement: MakeMeasurement) -> None:
    """A config has an example in each regime; of several families the first by name is told."""
    views.measure({A: 50.0}, timing_method=timed("write_flush"), family="llama3-8b")
    views.measure({A: 52.0}, timing_method=timed("write_flush"), family="drawn")
    views.measure({A: 40.0}, timing_method=timed("graph"))
    views.measure({A: 9.0}, problem=make_measurement(5).problem, family="torchbench")
    columns = "regime, family, m, config_id, runtime_us, observations"
    assert rows(views, f"SELECT {columns} FROM training_examples") == [  # noqa: S608 - our own text
        ("graph", None, 64, "A", 40.0, 1),
        ("write_flush", "drawn", 64, "A", 51.0, 2),
        (None, "torchbench", 69, "A", 9.0, 1),
    ]
    narrow = "SELECT case_id, regime, family FROM training_timings ORDER BY case_id"
    assert rows(views, narrow) == [(1, "graph", None), (2, "write_flush", "drawn"), (3, None, "torchbench")]


def test_observations_show_both(views: Warehouse) -> None:
    """Regime and family of each measurement are beside its timings."""
    views.measure({A: 50.0}, timing_method=timed("graph"), family="llama3-8b")
    assert rows(views, "SELECT regime, family FROM observations") == [("graph", "llama3-8b")]


def test_the_regime_nearest_to_deployment_comes_first(views: Warehouse) -> None:
    """A graph, then a flush that reads, then one that writes, then all others, for SQL as for Python."""
    regimes = (*REGIMES, "made_up", None)
    assert [regime_rank(regime) for regime in regimes] == [0, 1, 2, 3, 3]
    found = rows(views, "SELECT regime_rank(unnest(['graph', 'read_flush', 'write_flush', 'made_up', NULL]))")
    assert found == [(0,), (1,), (2,), (3,), (3,)]
    for regime in (None, "write_flush", "made_up", "read_flush"):
        views.measure({A: 50.0}, timing_method=timed(regime))
    places = "regime_place(hardware_id, environment_id, problem_id, regime)"
    found = rows(views, f"SELECT regime FROM fastest_configs ORDER BY {places}")  # noqa: S608 - our own text
    assert found == [("read_flush",), ("write_flush",), ("made_up",), (None,)]
