"""The views know problems of every op: their rooflines, inputs, dimensions and metrics."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from any_op import CONV, PROBLEMS, scaled
from view_warehouse import VENDOR, A, B

import samples
from diode_store.command_line.render import problem_text
from diode_store.devices.descriptor import ARCHITECTURES, describe
from diode_store.ops import OPS
from diode_store.query import analytics
from diode_store.records import Hardware, Metric, Problem
from diode_store.timing.plausible import LEAST_US, bound_of
from diode_store.timing.roofline import roofline
from diode_store.warehouse import migrate

if TYPE_CHECKING:
    from view_warehouse import Warehouse

    from conftest import RunCommand
    from diode_store.warehouse.store import Store

DEVICES = [
    *(Hardware("v", arch, arch, 80) for arch in ARCHITECTURES),
    Hardware("v", "unknown", "sm_999", 80),
]


def test_bounds_are_those_of_python(store: Store, database_url: str) -> None:
    """SQL and Python give the same work, peaks and bounds, for problems of every op on devices of every kind."""
    assert {problem.op for problem, _ in PROBLEMS.values()} == {*OPS, "conv", "reduction"}
    measured = [(problem, device) for problem, _ in PROBLEMS.values() for device in DEVICES]
    store.write(
        [
            samples.measurement(number, problem=problem, hardware=device)
            for number, (problem, device) in enumerate(measured)
        ]
    )
    sql = """
        SELECT p.key, h.arch, b.flops, b.bytes_moved, b.peak_tflops, b.roofline_us, b.certain_us, b.least_us
        FROM bounds AS b JOIN problems AS p ON p.id = b.problem_id JOIN hardware AS h ON h.id = b.hardware_id
    """
    with closing(analytics.connect(database_url)) as connection:
        found = {(bytes(key), arch): figures for key, arch, *figures in connection.execute(sql).fetchall()}
    for problem, device in measured:
        bound = bound_of(problem, device)
        flops, moved, peak, roofline_us, certain_us, least_us = found[problem.key, device.arch]
        assert least_us == pytest.approx(bound.least_us, rel=1e-9)
        assert certain_us == (bound.roofline_us and pytest.approx(bound.roofline_us, rel=1e-9))
        if not problem.is_known:
            assert (flops, moved, peak, roofline_us, certain_us, least_us) == (*[None] * 5, LEAST_US)
            continue
        expected = roofline(problem.shape, describe(device))
        assert flops == pytest.approx(expected.flops, rel=1e-9)
        assert moved == pytest.approx(expected.bytes_moved, rel=1e-9)
        if bound.roofline_us is not None:
            assert peak * 1e12 == pytest.approx(expected.flops / expected.compute_s, rel=1e-9)
            assert roofline_us == pytest.approx(expected.us, rel=1e-9)


@pytest.mark.parametrize(
    ("arch", "fp8", "int8"),
    [
        ("sm_75", 1, 2),
        ("sm_80", 1, 2),
        ("sm_89", 2, 2),
        ("sm_90", 2, 2),
        ("sm_100", 2, 2),
        ("gfx942", 2, 2),
    ],
)
def test_peaks_of_eight_bits(arch: str, fp8: float, int8: float) -> None:
    """Dense peaks as multiples of those of 16-bit floats, as the data sheets have them."""
    device = describe(Hardware("v", arch, arch, 1))
    half = device.peak_flops(2)
    assert (device.peak_flops(1) / half, device.peak_flops(1, is_integer=True) / half) == (fp8, int8)


def test_texts_are_those_of_python(views: Warehouse) -> None:
    """A problem reads the same in SQL, in Python and in the command."""
    for problem, _ in PROBLEMS.values():
        views.measure({A: 1e6}, problem=problem)
    arithmetic = "CASE WHEN asks_for_tf32(dtype, scalars) THEN 'tf32' ELSE dtype END"
    sql = f"""
        SELECT
            lower(hex(key)) AS key,
            problem_text(op, {arithmetic}, b, m, n, k, layout, dimensions, inputs, scalars) AS text
        FROM problems
    """  # noqa: S608 - of constants alone
    found = {row["key"]: row["text"] for row in views.ask(sql)}
    assert found == {problem.key.hex(): text for problem, text in PROBLEMS.values()}
    assert [problem_text(problem) for problem, _ in PROBLEMS.values()] == [text for _, text in PROBLEMS.values()]


def test_inputs_have_their_roles(views: Warehouse) -> None:
    """One row for each input: what it is for, its dtype, sizes and strides."""
    views.measure({A: 1e6}, problem=scaled())
    views.measure({A: 1e6}, problem=CONV)
    rows = views.ask(
        "SELECT p.op, i.* EXCLUDE (problem_id) FROM problem_inputs AS i JOIN problems AS p ON p.id = problem_id"
    )
    assert sorted((*row.values(),) for row in rows) == [
        ("conv", 0, "input", "bfloat16", [128, 256], [256, 1]),
        ("conv", 1, "input", "int64", [], []),
        ("scaled_mm", 0, "a", "float8_e4m3fn", [16, 4096], [4096, 1]),
        ("scaled_mm", 1, "b", "float8_e4m3fn", [4096, 6144], [1, 4096]),
        ("scaled_mm", 2, "scale_a", "float32", [16, 1], [1, 1]),
        ("scaled_mm", 3, "scale_b", "float32", [1, 6144], [1, 1]),
    ]


def test_an_unknown_op_has_a_fastest_kernel(views: Warehouse) -> None:
    """Its times count, and its columns of sizes and rooflines are NULL."""
    views.measure({A: 7.0, B: 5.0, VENDOR: 6.0}, problem=CONV)
    found = views.one("SELECT op, m, layout, dimensions, inputs, block_m, runtime_us FROM fastest_configs")
    assert json.loads(found.pop("inputs")) == [["bfloat16", [128, 256], [256, 1]], ["int64", [], []]]
    assert found == {
        "op": "conv",
        "m": None,
        "layout": None,
        "dimensions": None,
        "block_m": 128,
        "runtime_us": 5.0,
    }
    assert views.one("SELECT best_us, tflops, roofline_us, limited_by FROM rooflines") == {
        "best_us": 5.0,
        "tflops": None,
        "roofline_us": None,
        "limited_by": None,
    }
    assert views.one("SELECT problems, timings FROM coverage") == {"problems": 1, "timings": 3}


def test_do_spills_explain_slow_kernels(views: Warehouse) -> None:
    """The view has a row for each value, which joins the timings."""
    spills = Metric("spills", "B", (0.0, 128.0, None))
    views.measure({A: 7.0, B: 9.0, VENDOR: 6.0}, metrics=(spills, Metric("registers_per_thread", "", (32, 255, None))))
    views.measure({A: 7.5, B: 9.5})
    rows = views.ask("SELECT name, unit, value FROM metrics ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("registers_per_thread", "", 32.0),
        ("registers_per_thread", "", 255.0),
        ("spills", "B", 0.0),
        ("spills", "B", 128.0),
    ]
    joined = """
        SELECT o.block_m, o.runtime_us, s.value AS spilled
        FROM observations AS o
        JOIN metrics AS s ON s.measurement_id = o.measurement_id AND s.config_id = o.config_id AND s.name = 'spills'
        ORDER BY spilled
    """
    assert [tuple(row.values()) for row in views.ask(joined)] == [(64, 7.0, 0.0), (128, 9.0, 128.0)]


def test_metrics_follow_their_measurements(store: Store, database_url: str) -> None:
    """A sync copies new values and drops those of deleted measurements, from a base too."""
    count = "SELECT count(*), sum(value) FROM metrics"
    made = [samples.measurement(number, **samples.EVERY_FIELD | {"superseded_by": None}) for number in range(4)]
    store.write(made[:2])
    with closing(analytics.connect(database_url)) as connection:
        assert connection.execute(count).fetchall() == [(8, 577.0)]
    store.write([made[2], samples.measurement(9)])
    with store.engine.begin() as connection:
        for table, key in (("metric_values", "measurement_id"), ("timings", "measurement_id"), ("measurements", "id")):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE {key} = 1")  # noqa: S608 - our own names
    with closing(analytics.connect(database_url)) as again:
        assert again.execute(count).fetchall() == [(8, 577.0)]
        assert again.execute("SELECT count(*) FROM metric_values").fetchall() == [(8,)]


def test_what_is_filled_in_later_arrives(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync copies the sizes of a problem that a later version knows, and works out its roofline."""
    problem = scaled()
    monkeypatch.delitem(OPS, "scaled_mm")
    unknown = Problem(problem.op, problem.inputs, problem.scalars)
    store.write([samples.measurement(1, problem=unknown, runtimes=(1e3,))])
    sql = "SELECT p.m, p.dimensions, b.flops FROM problems AS p, known_cases AS b"
    with closing(analytics.connect(database_url)) as connection:
        assert connection.execute(sql).fetchall() == [(None, None, None)]
    monkeypatch.undo()
    migrate.upgrade(store.engine)
    with closing(analytics.connect(database_url)) as connection:
        [(m, dimensions, flops)] = connection.execute(sql).fetchall()
    assert (m, json.loads(dimensions), flops) == (16, dict(problem.shape.dimensions), 2.0 * 16 * 6144 * 4096)


def test_the_command_prints_them(store: Store, database_url: str, diode: RunCommand) -> None:
    """`diode fastest` shows scaling, groups and inputs, for people and for scripts."""
    store.write(
        [
            samples.measurement(n, problem=problem, runtimes=(1e3, 1e3))
            for n, (problem, _) in enumerate(PROBLEMS.values())
        ]
    )
    found = diode("fastest", "--op", "scaled_mm", "--database", database_url)
    assert "scaled_mm e4m3 16x6144x4096 nt row fast → bf16" in found.out
    rows = json.loads(diode("fastest", "--limit", "0", "--json", "--database", database_url).out)
    assert {row["problem"] for row in rows} == {text for _, text in PROBLEMS.values()}
    nearest = diode("fastest", "--op", "grouped_mm", "--m", "999", "--database", database_url)
    assert "nearest measured: grouped_mm bf16 8 x (256x4096x2048) nt 2d3d skew 1" in nearest.err
