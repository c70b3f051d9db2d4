"""The map of what is measured: its cells, its holes, and the command that fills one."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import samples
from diode_collectors.problems.problem import parse_problem
from diode_explorer.feed import Feed
from diode_explorer.pages.coverage.cells import octave, octave_text
from diode_explorer.pages.coverage.holes import Hole, holes
from diode_explorer.pages.coverage.page import COVERAGE
from diode_explorer.pages.coverage.picture import SHOWN
from diode_explorer.pages.coverage.rooflines import FIGURES, peaks
from diode_explorer.pages.page import NotThereError
from diode_store.candidates.names import kernel_config
from diode_store.devices.known import KNOWN_DEVICES
from diode_store.ops.work import ITEMSIZES
from diode_store.records import Hardware, ProblemShape
from diode_store.views.problem_sql import problem_macros
from diode_store.warehouse.store import Store
from diode_trainer.features import roofline_us
from diode_trainer.report.parts import Command
from paged import facts, faults, layer, parts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diode_store.records import KernelConfig, Measurement

VENDOR, A, B = kernel_config("mm", {}), samples.triton_config(64), samples.triton_config(128)
LATER = replace(samples.ENVIRONMENT, torch="2.13.0")
LARGEST = 802_816


def measured(number: int, sizes: tuple[int, int, int], times: Mapping[KernelConfig, float], **more: Any) -> Measurement:
    """Return a measurement of an mm."""
    fields = {"problem": samples.matmul(*sizes), "timings": samples.timings_of(times), **more}
    return replace(samples.measurement(number), **fields)


@pytest.fixture
def feed(database_url: str) -> Iterator[Feed]:
    """Return a feed over four problems of the H200 and one of another device."""
    with Store.open(database_url) as store:
        store.write(
            [
                measured(1, (64, 256, 128), {VENDOR: 8.0, A: 10.0, B: 16.0}),
                measured(2, (127, 511, 96), {VENDOR: 12.0, A: 4.0}),
                measured(3, (100, 300, 128), {A: 40.0}),
                measured(4, (64, 2048, 4096), {VENDOR: 20.0, A: 10.0}),
                measured(5, (16, 16, 16), {VENDOR: 5.0}, hardware=samples.H100),
            ]
        )
    with Feed(database_url) as found:
        yield found


def command(feed: Feed, **filters: Any) -> list[str]:
    """Return the words of the command that measures what is chosen."""
    part = parts(feed, COVERAGE, **filters)["chosen"].part
    assert isinstance(part, Command)
    return shlex.split(part.command)


@pytest.mark.quick(6)
@pytest.mark.parametrize("hardware", [*KNOWN_DEVICES, Hardware("nvidia", "Unknown", "sm_999", 7)], ids=lambda h: h.name)
def test_the_roofline_is_that_of_the_features(hardware: Hardware) -> None:
    """In SQL as in Python, for every dtype, also one that nobody knows, and for sizes beyond any integer."""
    shapes = [
        ProblemShape("bmm", dtype, b, m, n, k, "nt", tf32)
        for dtype in (*ITEMSIZES, "complex32")
        for tf32 in {False, dtype == "float32"}
        for b, m, n, k in ((1, 1, 1, 1), (1, 8192, 8192, 8192), (48, 128, 64, 2048), (LARGEST,) * 4)
    ]
    columns = ("op", "dtype", "b", "m", "n", "k", "layout", "tf32")
    with duckdb.connect() as connection:
        connection.execute(problem_macros())
        connection.execute("CREATE TABLE problems AS SELECT 1 AS hardware_id, 'mm' AS op, 'x' AS dtype, 1::BIGINT AS b")
        connection.execute("ALTER TABLE problems ADD COLUMN m BIGINT; ALTER TABLE problems ADD COLUMN n BIGINT")
        connection.execute("ALTER TABLE problems ADD COLUMN k BIGINT; ALTER TABLE problems ADD COLUMN layout VARCHAR")
        connection.execute("ALTER TABLE problems ADD COLUMN tf32 BOOLEAN; DELETE FROM problems")
        given = [(1, *(getattr(shape, column) for column in columns)) for shape in shapes]
        connection.executemany("INSERT INTO problems VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", given)
        connection.execute("ALTER TABLE problems ADD COLUMN dimensions VARCHAR")
        sql = f"WITH {peaks({1: hardware})} SELECT {FIGURES} FROM problems JOIN peaks USING (hardware_id)"  # noqa: S608 - our own text
        found = [row[-1] for row in connection.execute(sql).fetchall()]
    assert found == pytest.approx([roofline_us(shape, hardware) for shape in shapes], rel=1e-9)


@pytest.mark.parametrize(("size", "start"), [(1, 1), (2, 2), (3, 2), (4095, 2048), (4096, 4096), (2**31 - 1, 2**30)])
def test_the_octave_of_a_size(size: int, start: int) -> None:
    """Is the power of two that it is not below."""
    with duckdb.connect() as connection:
        assert connection.execute(f"SELECT {octave(str(size))}").fetchall() == [(start,)]


def test_octaves_are_called_by_their_ends() -> None:
    """Of which the first has one size."""
    assert [octave_text(start) for start in (1, 2, 1024)] == ["1", "2 to 3", "1,024 to 2,047"]


def test_a_cell_has_the_medians_of_its_problems(feed: Feed) -> None:
    """Worked out by hand; of the device with most problems, which is said."""
    page = parts(feed, COVERAGE)
    assert facts(page["shown"]) == {"device": "NVIDIA H200", "problems": "4", "cells": "2", "holes": "2"}
    first, second = rows(page["cells"])
    assert [first[name] for name in ("m_from", "n_from", "problems", "configs")] == [64, 256, 3, 6]
    assert first["best_us"] == 8.0  # of 8, 4 and 40
    assert first["speedup"] == pytest.approx((0.8 + 3.0) / 2)  # the third has no vendor's time
    assert first["triton_wins_pct"] == 50
    assert first["tflops"] == pytest.approx(2 * 64 * 256 * 128 / 8.0 / 1e6)
    assert second["roofline_pct"] == pytest.approx(
        100 * roofline_us(ProblemShape("mm", "bfloat16", 1, 64, 2048, 4096, "nn"), samples.H200) / 10
    )


def test_a_problem_counts_once(feed: Feed, database_url: str) -> None:
    """In the regime nearest to deployment, as it was measured last; each other way can be asked for."""
    flushed, in_graph = (
        replace(samples.EVERY_FIELD["timing_method"], regime=regime) for regime in ("write_flush", "graph")
    )
    times = (
        (20.0, flushed, samples.ENVIRONMENT, 0),
        (15.0, in_graph, samples.ENVIRONMENT, 1),
        (30.0, in_graph, LATER, 2),
    )
    with Store.open(database_url) as store:
        store.write(
            [
                measured(
                    10 + day,
                    (8, 8, 8),
                    {A: us},
                    timing_method=method,
                    environment=environment,
                    measured_at=samples.MEASURED_AT + timedelta(days=day),
                )
                for us, method, environment, day in times
            ]
        )
    with Feed(database_url) as newer:
        environments = dict(
            newer.state.connection.execute("SELECT torch, lower(hex(key)) FROM environments").fetchall()
        )

        def best(**filters: Any) -> float:
            (cell,) = (row for row in rows(parts(newer, COVERAGE, **filters)["cells"]) if row["m_from"] == 8)
            return float(cell["best_us"])

        assert best() == 30.0
        assert best(environment=environments[samples.ENVIRONMENT.torch]) == 15.0
        assert best(regime="write_flush") == 20.0


def test_other_axes_and_the_size_that_is_not_on_one(feed: Feed) -> None:
    """An octave of the third size narrows the map."""
    by_k = rows(parts(feed, COVERAGE, axes="n-k")["cells"])
    assert [(row["n_from"], row["k_from"], row["problems"]) for row in by_k] == [
        (256, 64, 1),
        (256, 128, 2),
        (2048, 4096, 1),
    ]
    narrowed = rows(parts(feed, COVERAGE, k_from=128)["cells"])
    assert [(row["m_from"], row["n_from"], row["problems"]) for row in narrowed] == [(64, 256, 2)]
    assert [each.name for each in COVERAGE.shown({})][-1] == "k_from"
    assert [each.name for each in COVERAGE.shown({"axes": "n-k"})][-1] == "m_from"


def test_what_is_chosen_is_listed(feed: Feed) -> None:
    """A cell, or a whole row of them."""
    cell = rows(parts(feed, COVERAGE, m_from=64, n_from=2048)["chosen"])
    assert [(row["problem"], row["speedup"]) for row in cell] == [("mm bf16 64x2048x4096 nn", 2.0)]
    assert len(rows(parts(feed, COVERAGE, m_from=64)["chosen"])) == 4
    assert "chosen" not in parts(feed, COVERAGE)


def test_holes_lie_between_what_is_measured() -> None:
    """In their row or in their column; a corner is none; the most surrounded come first."""
    #      1  2  4
    #   1  x  .  x
    #   2  .  .  x
    #   4  x  .  .
    covered = {(1, 1), (1, 4), (2, 4), (4, 1)}
    assert holes(covered) == [Hole((1, 2), 3), Hole((2, 1), 2)]
    assert [hole.neighbors for hole in holes(covered)] == [3, 2]
    assert holes(set()) == []


def test_a_hole_leads_to_the_command_that_measures_it(feed: Feed) -> None:
    """Of the usual kind and with the usual sizes of its row and column: here both K of its row are as frequent."""
    page = parts(feed, COVERAGE)
    assert [(row["m_from"], row["n_from"], row["neighbors"]) for row in rows(page["holes"])] == [
        (64, 512, 1),
        (64, 1024, 1),
    ]
    words = command(feed, m_from=64, n_from=512)
    assert words == ["diode-collect", "--shape", rows(page["holes"])[0]["problem"], "--search-space", "SAMPLE:72"]
    problem = parse_problem(words[2])
    assert (problem.op, problem.m, problem.n, problem.k, problem.layout) == ("mm", 64, 512, 128, "nn")
    addresses = [row["address"] for row in layer(page["map"], 0)]
    assert addresses == ["/coverage?m_from=64&n_from=512#chosen", "/coverage?m_from=64&n_from=1024#chosen"]


def test_what_does_not_fit_is_no_hole(database_url: str) -> None:
    """Between two long rows lies one that no memory holds; choosing it says so."""
    with Store.open(database_url) as store:
        store.write([measured(1, (2**20, 2**3, 8), {A: 10.0}), measured(2, (2**20, 2**19, 8), {A: 1e6})])
    with Feed(database_url) as feed:
        page = parts(feed, COVERAGE)
        starts = {row["n_from"] for row in rows(page["holes"])}
        too_large = parts(feed, COVERAGE, m_from=2**20, n_from=2**18)["chosen"].part
    assert starts == {2**power for power in range(4, 15)}
    assert "does not fit into the memory of the device" in str(too_large)


def test_what_no_sweep_measures_has_no_command(database_url: str) -> None:
    """Such as float64."""
    with Store.open(database_url) as store:
        store.write([measured(1, (64, 64, 64), {A: 10.0}, problem=samples.matmul(64, 64, 64, "float64"))])
    with Feed(database_url) as feed:
        chosen = parts(feed, COVERAGE, m_from=64, n_from=128)["chosen"].part
    assert "diode-collect cannot measure this op and dtype" in str(chosen)


@pytest.mark.parametrize(
    ("filters", "said"), [({"m_from": 3}, "power of two"), ({"device": "none"}, "no device named none")]
)
def test_what_is_not_there(feed: Feed, filters: dict[str, Any], said: str) -> None:
    """Is said in a line."""
    with pytest.raises(NotThereError, match=said):
        parts(feed, COVERAGE, **filters)


def test_nothing_matches(feed: Feed) -> None:
    """Neither where filters leave nothing nor where there is nothing."""
    assert [str(each.part.kind) for each in parts(feed, COVERAGE, layout="tt").values()] == ["note"]
    assert [str(each.part.kind) for each in parts(feed, COVERAGE, op="bmm", device="NVIDIA H200").values()] == ["note"]


def test_an_empty_warehouse(database_url: str) -> None:
    """Says so."""
    with Feed(database_url) as feed:
        (only,) = parts(feed, COVERAGE).values()
    assert "Nothing is measured yet." in str(only.part)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shows", SHOWN)
def test_a_picture_is_vega_lite(feed: Feed, shows: str) -> None:
    """Whatever its colours say; they are of the theme."""
    picture = parts(feed, COVERAGE, show=shows, m_from=64, n_from=256)["map"]
    assert faults(picture) == []
    assert len(layer(picture, 2)) == 1
    spec = picture.spec or {}
    assert "#" not in json.dumps({**spec, "layer": [{**each, "data": None} for each in spec["layer"]]})
