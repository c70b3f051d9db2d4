"""Every view over rows whose answer was worked out by hand."""

from __future__ import annotations

import math
import re
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from diode_store import analytics
from diode_store.normalise import kernel_config
from diode_store.records import Environment, KernelConfig, Outcome, Problem, TensorSpec, Timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import MakeMeasurement
    from diode_store.store import Store

DOCS = Path(__file__).parents[2] / "docs" / "views.md"

VENDOR = kernel_config("mm", {})
A, B, C = (kernel_config("triton_mm", {"BLOCK_M": block, "BLOCK_N": 32, "BLOCK_K": 16}) for block in (64, 128, 256))
TMA = kernel_config("triton_mm_persistent_tma", {"BLOCK_M": 512, "num_stages": 3, "num_warps": 8})
CPP = kernel_config("cpp_CppMicroGemmFP32Vec_0", {})
ALL_COLUMNS = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
WHOLE = kernel_config("triton_mm", {**ALL_COLUMNS, "ALLOW_TF32": True})
NAMES = {VENDOR: "vendor", A: "A", B: "B", C: "C", TMA: "tma", CPP: "cpp", WHOLE: "whole"}


def estimate(config: KernelConfig, runtime_us: float) -> Timing:
    """Return a timing that was given up early."""
    return Timing(config, runtime_us, is_estimate=True)


class Warehouse:
    """Measures what a test says, and asks the views."""

    def __init__(self, store: Store, url: str, make: MakeMeasurement) -> None:
        self._store = store
        self._url = url
        self._make = make
        self._number = 0

    def measure(self, times: Mapping[KernelConfig, float | Timing | Outcome], **overrides: Any) -> None:
        """Write one measurement: config → microseconds, a whole timing, or how it failed."""
        self._number += 1
        timings = tuple(
            value
            if isinstance(value, Timing)
            else Timing(config, None, value)
            if isinstance(value, Outcome)
            else Timing(config, value)
            for config, value in times.items()
        )
        base = self._make(0)
        fields = {"uid": self._number.to_bytes(16, "big"), "timings": timings, **overrides}
        self._store.write([replace(base, **fields)])

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query; config ids become the names in ``NAMES``."""
        with closing(analytics.connect(self._url)) as connection:
            names = self._config_names(connection)
            result = analytics.run_query(connection, sql)
            rows = [dict(zip(result.columns, row, strict=True)) for row in result]
        for row in rows:
            for column in row:
                if column.endswith("config_id"):
                    row[column] = names.get(row[column])
                elif column == "tie_config_ids":
                    row[column] = [names[number] for number in row[column]]
        return rows

    def one(self, sql: str) -> dict[str, Any]:
        """Return the only row of a query."""
        [row] = self.ask(sql)
        return row

    @staticmethod
    def _config_names(connection: Any) -> dict[int, str]:
        by_key = {config.key: name for config, name in NAMES.items()}
        rows = connection.execute("SELECT id, key FROM configs").fetchall()
        return {number: by_key[bytes(key)] for number, key in rows}


@pytest.fixture
def warehouse(store: Store, database_url: str, make_measurement: MakeMeasurement) -> Warehouse:
    """Return an empty warehouse to measure into."""
    return Warehouse(store, database_url, make_measurement)


FASTEST = """
SELECT config_id, runtime_us, runner_up_config_id, runner_up_us, tie_config_ids, sigma, repeats, configs
FROM fastest_configs
"""


def fastest(
    config: str, us: float, runner_up: str | None, its_us: float | None, ties: list[str], sigma: float, **counts: int
) -> dict[str, Any]:
    """Return a row of ``FASTEST``."""
    return {
        "config_id": config,
        "runtime_us": us,
        "runner_up_config_id": runner_up,
        "runner_up_us": its_us,
        "tie_config_ids": ties,
        "sigma": sigma,
        "repeats": 1,
        "configs": 1,
        **counts,
    }


def test_fastest_is_the_lowest_median(warehouse: Warehouse) -> None:
    """A single lucky run does not win: A's median of 99 is behind B's 95, though A once took 80."""
    warehouse.measure({A: 99.0, B: 95.0, VENDOR: 300.0})
    warehouse.measure({A: 80.0})
    warehouse.measure({A: 140.0})
    row = warehouse.one(FASTEST)
    assert (row["config_id"], row["runtime_us"], row["repeats"]) == ("B", 95.0, 1)
    assert (row["runner_up_config_id"], row["runner_up_us"], row["configs"]) == ("A", 99.0, 3)


def test_sigma_comes_from_repeats(warehouse: Warehouse) -> None:
    """Of A's 90 and 110 the mean is 100 and the variance 200, so sigma is sqrt(0.02) and ties reach 1.2828 x 98."""
    warehouse.measure({A: 90.0, B: 98.0, C: 125.5, TMA: 126.0})
    warehouse.measure({A: 110.0})
    sigma = math.sqrt(0.02)
    assert 98 * (1 + 2 * sigma) == pytest.approx(125.72, abs=0.01)
    expected = fastest("B", 98.0, "A", 100.0, ["B", "A", "C"], pytest.approx(sigma), configs=4)
    assert warehouse.one(FASTEST) == expected


def test_sigma_pools_what_was_repeated(warehouse: Warehouse) -> None:
    """A was timed 3 times (relative variance 0.01, 2 degrees of freedom), B twice (0.0002, 1): together 0.0067333."""
    for a, b in ((90.0, 198.0), (100.0, 202.0)):
        warehouse.measure({A: a, B: b})
    warehouse.measure({A: 110.0, C: 500.0})
    row = warehouse.one(FASTEST)
    assert row["sigma"] == pytest.approx(math.sqrt((2 * 0.01 + 0.0002) / 3))
    assert (row["config_id"], row["runtime_us"], row["repeats"], row["configs"]) == ("A", 100.0, 3, 3)
    assert row["tie_config_ids"] == ["A"]


@pytest.mark.parametrize(
    ("best", "inside", "outside", "sigma"),
    [
        (5.0, 6.09, 6.11, 0.11),
        (9.99, 12.18, 12.19, 0.11),
        (10.0, 11.39, 11.41, 0.07),
        (29.0, 33.05, 33.07, 0.07),
        (30.0, 31.01, 31.03, 0.017),
        (1000.0, 1033.0, 1035.0, 0.017),
    ],
)
def test_sigma_without_repeats(warehouse: Warehouse, best: float, inside: float, outside: float, sigma: float) -> None:
    """Short kernels scatter more: 11% under 10 us, 7% under 30, 1.7% above; ties reach two of these."""
    warehouse.measure({C: outside, A: best, B: inside})
    assert warehouse.one(FASTEST) == fastest("A", best, "B", inside, ["A", "B"], sigma, configs=3)


def test_equal_times_give_a_stable_order(warehouse: Warehouse) -> None:
    """Among equals the lowest config id is first, and the rest follow by id."""
    warehouse.measure({C: 50.0, A: 50.0, VENDOR: 50.0, B: 50.0})
    ids = [row["config_id"] for row in warehouse.ask("SELECT id AS config_id FROM configs ORDER BY id")]
    assert warehouse.one(FASTEST) == fastest(ids[0], 50.0, ids[1], 50.0, ids, 0.017, configs=4)


def test_a_single_config_has_no_runner_up(warehouse: Warehouse) -> None:
    """What was not measured is NULL."""
    warehouse.measure({A: 50.0})
    assert warehouse.one(FASTEST) == fastest("A", 50.0, None, None, ["A"], 0.017)


def test_fastest_believes_only_what_it_may(warehouse: Warehouse) -> None:
    """Estimates, failures, replays, flagged and superseded measurements never win."""
    warehouse.measure({A: 50.0, B: estimate(B, 1.0), C: Outcome.TIMEOUT})
    warehouse.measure({B: 2.0}, is_replay=True)
    warehouse.measure({B: 3.0}, flags=("throttled",))
    warehouse.measure({B: 4.0}, superseded_by=bytes(16))
    assert warehouse.one(FASTEST) == fastest("A", 50.0, None, None, ["A"], 0.017)


def test_fastest_counts_what_a_hook_left_over(warehouse: Warehouse) -> None:
    """A time is a time, whoever listed the choices."""
    warehouse.measure({A: 50.0}, choice_policy="hook:abc")
    assert warehouse.one(FASTEST)["config_id"] == "A"


def test_a_problem_without_a_good_timing_has_no_fastest(warehouse: Warehouse) -> None:
    """Failures and estimates make no row."""
    warehouse.measure({A: estimate(A, 9.0), B: Outcome.COMPILE_ERROR})
    assert warehouse.ask(FASTEST) == []


def test_each_hardware_environment_and_problem_by_itself(
    warehouse: Warehouse, make_measurement: MakeMeasurement
) -> None:
    """Times are compared where they are comparable, and nowhere else."""
    base = make_measurement(0)
    warehouse.measure({A: 50.0, B: 60.0})
    warehouse.measure({A: 90.0, B: 60.0}, environment=Environment(torch="2.13.0"))
    warehouse.measure({A: 30.5, B: 31.0}, hardware=replace(base.hardware, name="NVIDIA H100"))
    warehouse.measure({C: 70.0}, problem=make_measurement(5).problem)
    rows = warehouse.ask("SELECT hardware, torch, m, config_id, runtime_us FROM fastest_configs ORDER BY ALL")
    assert [tuple(row.values()) for row in rows] == [
        ("NVIDIA H100", "2.11.0+cu130", 64, "A", 30.5),
        ("NVIDIA H200", "2.11.0+cu130", 64, "A", 50.0),
        ("NVIDIA H200", "2.11.0+cu130", 69, "C", 70.0),
        ("NVIDIA H200", "2.13.0", 64, "B", 60.0),
    ]


def test_fastest_shows_the_problem_and_the_kernel(warehouse: Warehouse) -> None:
    """Everything needed to read a row, or to run its kernel, is in it."""
    warehouse.measure({TMA: 50.0})
    row = warehouse.one(
        "SELECT vendor, arch, multiprocessors, op, dtype, b, m, n, k, layout, inputs, scalars, template, block_m, "
        "block_n, num_stages, num_warps, kwargs, is_vendor FROM fastest_configs"
    )
    inputs = '[["bfloat16", [64, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]'
    assert tuple(row.values()) == (
        *("nvidia", "sm_90", 132, "mm", "bfloat16", 1, 64, 256, 128, "nn", inputs, "[]"),
        *("triton::mm_persistent_tma", 512, None, 3, 8, "[]", False),
    )


def test_observations_show_every_timing(warehouse: Warehouse) -> None:
    """Failures, estimates, replays and flagged ones too; only superseded measurements are left out."""
    warehouse.measure({A: 50.0, B: estimate(B, 200.0), C: Outcome.OUT_OF_RESOURCES})
    warehouse.measure({VENDOR: 40.0}, is_replay=True)
    warehouse.measure({VENDOR: 41.0}, flags=("throttled",))
    warehouse.measure({VENDOR: 42.0}, superseded_by=bytes(16))
    rows = warehouse.ask(
        "SELECT measurement_id, config_id, runtime_us, outcome, is_estimate, is_replay, flags, is_vendor "
        "FROM observations ORDER BY measurement_id, block_m"
    )
    assert [tuple(row.values()) for row in rows] == [
        (1, "A", 50.0, "ok", False, False, None, False),
        (1, "B", 200.0, "ok", True, False, None, False),
        (1, "C", None, "out_of_resources", False, False, None, False),
        (2, "vendor", 40.0, "ok", False, True, None, True),
        (3, "vendor", 41.0, "ok", False, False, "throttled", True),
    ]


EXAMPLES = "SELECT config_id, runtime_us, outcome, is_estimate, observations FROM training_examples"


def examples(warehouse: Warehouse) -> dict[str, tuple[Any, ...]]:
    """Return config → (runtime, outcome, is_estimate, observations)."""
    return {row["config_id"]: tuple(row.values())[1:] for row in warehouse.ask(EXAMPLES)}


def test_training_examples_take_the_best_knowledge(warehouse: Warehouse) -> None:
    """The median of real timings, else of estimates, else how it failed."""
    warehouse.measure({A: 10.0, B: estimate(B, 90.0), C: Outcome.FAILED_UNSPECIFIED, TMA: estimate(TMA, 7.0)})
    warehouse.measure({A: 30.0, B: estimate(B, 110.0), C: Outcome.OUT_OF_RESOURCES, TMA: 12.5})
    warehouse.measure({A: 20.0, B: Outcome.TIMEOUT, C: Outcome.FAILED_UNSPECIFIED})
    warehouse.measure({A: estimate(A, 1000.0), VENDOR: Outcome.FAILED_UNSPECIFIED})
    assert examples(warehouse) == {
        "A": (20.0, "ok", False, 4),
        "B": (100.0, "ok", True, 3),
        "C": (None, "out_of_resources", False, 3),
        "tma": (12.5, "ok", False, 2),
        "vendor": (None, "failed_unspecified", False, 1),
    }


def test_training_examples_leave_out_what_would_bias(warehouse: Warehouse) -> None:
    """Replays, flagged and superseded measurements, and lists that a hook had filtered."""
    warehouse.measure({A: 50.0})
    warehouse.measure({A: 1.0, B: 1.0}, is_replay=True)
    warehouse.measure({A: 2.0, B: 2.0}, flags=("throttled",))
    warehouse.measure({A: 3.0, B: 3.0}, superseded_by=bytes(16))
    warehouse.measure({A: 4.0, B: 4.0}, choice_policy="hook:abc")
    assert examples(warehouse) == {"A": (50.0, "ok", False, 1)}


def test_training_examples_come_in_a_stable_order(warehouse: Warehouse, make_measurement: MakeMeasurement) -> None:
    """By hardware, environment, problem and config, so that a seed gives the same split every time."""
    for number in (3, 1, 2):
        problem = make_measurement(number).problem
        warehouse.measure({C: 3.0, A: 1.0, B: 2.0}, problem=problem, environment=Environment(torch=str(number % 2)))
    rows = warehouse.ask("SELECT hardware_id, environment_id, problem_id, block_m FROM training_examples")
    ids = [tuple(row.values())[:3] for row in rows]
    assert len(ids) == 9
    assert ids == sorted(ids)
    ordered = warehouse.ask(
        "SELECT c.block_m FROM configs AS c, environments AS e, problems AS p "
        "WHERE EXISTS (FROM measurements AS m WHERE m.problem_id = p.id AND m.environment_id = e.id) "
        "ORDER BY e.id, p.id, c.id"
    )
    assert [row["block_m"] for row in rows] == [row["block_m"] for row in ordered]


def test_training_examples_describe_device_and_kernel(warehouse: Warehouse, make_measurement: MakeMeasurement) -> None:
    """A row holds every column that features are made of."""
    hardware = replace(
        make_measurement(0).hardware,
        l2_bytes=62914560,
        shared_memory_per_block_bytes=232448,
        memory_bytes=141_000_000_000,
        memory_bandwidth_bytes_per_s=4_800_000_000_000,
        max_clock_mhz=1980,
    )
    warehouse.measure({WHOLE: 9.5}, hardware=hardware)
    assert warehouse.one("FROM training_examples") == {
        "hardware_id": 1,
        "hardware": "NVIDIA H200",
        "vendor": "nvidia",
        "arch": "sm_90",
        "multiprocessors": 132,
        "l2_bytes": 62914560,
        "shared_memory_per_block_bytes": 232448,
        "memory_bytes": 141_000_000_000,
        "memory_bandwidth_bytes_per_s": 4_800_000_000_000,
        "max_clock_mhz": 1980,
        "environment_id": 1,
        "torch": "2.11.0+cu130",
        "problem_id": 1,
        "op": "mm",
        "dtype": "bfloat16",
        "b": 1,
        "m": 64,
        "n": 256,
        "k": 128,
        "layout": "nn",
        "config_id": "whole",
        "template": "triton::mm",
        "block_m": 64,
        "block_n": 32,
        "block_k": 16,
        "group_m": 8,
        "num_stages": 3,
        "num_warps": 4,
        "allow_tf32": True,
        "is_vendor": False,
        "runtime_us": 9.5,
        "outcome": "ok",
        "is_estimate": False,
        "observations": 1,
    }


def test_coverage_counts_everything_once(warehouse: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Per hardware, environment, op and dtype; superseded measurements do not count."""
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 3, 4, 5, tzinfo=UTC)
    half = Problem.create("mm", (TensorSpec("float16", (8, 8), (8, 1)), TensorSpec("float16", (8, 8), (8, 1))))
    warehouse.measure({A: 1.0, B: estimate(B, 9.0), C: Outcome.TIMEOUT}, measured_at=late)
    warehouse.measure({A: 1.5, VENDOR: Outcome.COMPILE_ERROR}, measured_at=early)
    warehouse.measure({A: 2.0}, problem=make_measurement(3).problem, measured_at=None, is_replay=True)
    warehouse.measure({TMA: 2.0}, superseded_by=bytes(16))
    warehouse.measure({A: 3.0}, problem=half, measured_at=None)
    where = {"hardware_id": 1, "hardware": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132, "environment_id": 1}
    software = {"torch": "2.11.0+cu130", "triton": "3.6.0", "compute": "cuda 13.0", "driver": "580.95"}
    counts = ("problems", "configs", "measurements", "timings", "failures", "estimates")
    nothing = {"first_measured_at": None, "last_measured_at": None}
    bf16 = {"first_measured_at": early.replace(tzinfo=None), "last_measured_at": late.replace(tzinfo=None)}
    assert warehouse.ask("FROM coverage") == [
        {
            **where,
            **software,
            "op": "mm",
            "dtype": "bfloat16",
            **dict(zip(counts, (2, 4, 3, 6, 2, 1), strict=True)),
            **bf16,
        },
        {
            **where,
            **software,
            "op": "mm",
            "dtype": "float16",
            **dict(zip(counts, (1, 1, 1, 1, 0, 0), strict=True)),
            **nothing,
        },
    ]


GAP = (
    "SELECT vendor_config_id, vendor_template, vendor_us, triton_config_id, block_m, triton_us, speedup FROM vendor_gap"
)


def test_vendor_gap_compares_the_best_of_both(warehouse: Warehouse) -> None:
    """Triton's best against the vendor's best; neither estimates nor other kinds of kernel take part."""
    warehouse.measure({A: 40.0, B: 25.0, TMA: 30.0, VENDOR: 50.0, CPP: 1.0, C: estimate(C, 2.0)})
    warehouse.measure({VENDOR: 60.0})
    assert tuple(warehouse.one(GAP).values()) == ("vendor", "aten::mm", 55.0, "B", 128, 25.0, 2.2)


def test_vendor_gap_needs_both(warehouse: Warehouse, make_measurement: MakeMeasurement) -> None:
    """Where one side failed or was not timed there is nothing to compare."""
    warehouse.measure({A: 40.0, VENDOR: Outcome.RUNTIME_ERROR})
    warehouse.measure({VENDOR: 40.0, CPP: 3.0}, problem=make_measurement(2).problem)
    assert warehouse.ask(GAP) == []


@pytest.mark.parametrize("view", analytics.VIEWS)
def test_views_are_documented(database_url: str, view: str) -> None:
    """docs/views.md has one table a view, with exactly its columns in their order."""
    with closing(analytics.connect(database_url)) as connection:
        columns = [name for (name, *_) in connection.execute(f"DESCRIBE {view}").fetchall()]
    section = re.split(r"^## ", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(f"`{view}`")]
    first_cells = re.findall(r"^\| ([^|]+) \|", text, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", "\n".join(first_cells)) == columns
