"""Pages of a warehouse with problems of ops that this torch-diode does and does not know."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import samples
from diode_collectors.problems.problem import parse_problem
from diode_explorer.feed import Feed
from diode_explorer.pages.coverage.holes import Filling
from diode_explorer.pages.coverage.page import COVERAGE
from diode_explorer.pages.page import Page
from diode_explorer.pages.problem.page import PROBLEM
from diode_store.candidates.names import kernel_config
from diode_store.ops.fused import fused_problem
from diode_store.records import Problem, TensorSpec, Timing
from diode_store.warehouse.store import Store
from paged import facts, parts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

CONV = Problem.create("conv", (TensorSpec("bfloat16", (128, 256), (256, 1)), TensorSpec("int64", (), ())))
SCALED = Problem.create(
    "scaled_mm",
    (
        TensorSpec("float8_e4m3fn", (16, 4096), (4096, 1)),
        TensorSpec("float8_e4m3fn", (4096, 6144), (1, 4096)),
        TensorSpec("float32", (16, 1), (1, 1)),
        TensorSpec("float32", (1, 6144), (1, 1)),
    ),
    {"out_dtype": "bfloat16"},
)
SCALED_TEXT = "scaled_mm e4m3 16x6144x4096 nt row → bf16"


@pytest.fixture
def feed(database_url: str) -> Iterator[Feed]:
    """Return a feed over a problem of each kind, in two environments."""
    with Store.open(database_url) as store:
        store.write(
            [
                samples.measurement(number, problem=problem, runtimes=(20.0, 10.0))
                for number, problem in enumerate((samples.matmul(64, 256, 128), SCALED, CONV))
            ]
        )
    with Feed(database_url) as found:
        yield found


def test_problems_are_named(feed: Feed) -> None:
    """A list names dimensions, and an unknown op by its inputs."""
    listed = rows(parts(feed, PROBLEM)["problems"])
    assert {row["problem"] for row in listed} == {"mm bf16 64x256x128 nn", SCALED_TEXT, "conv[bf16 128x256, int64]"}


def test_an_unknown_op_has_a_page(feed: Feed) -> None:
    """Its kernels are there, without a speed, a model's ranking or a command to measure it."""
    page = parts(feed, PROBLEM, problem=CONV.key.hex())
    assert page["problem"].part.title == "conv[bf16 128x256, int64]"  # type: ignore[union-attr] # it has facts
    assert facts(page["problem"])["best"] == "10.00 us"
    assert "speed" not in facts(page["problem"])
    assert [row["runtime_us"] for row in rows(page["configs"])] == [10.0, 20.0]
    assert not page.keys() & {"reproduce", "ranking"}


def test_a_fused_kernel_has_a_page(database_url: str) -> None:
    """Its configs are told apart by their blocks; nothing in it speaks of M, N and K."""
    problem = fused_problem("reduction", ("bfloat16",), "3f2a91b0" * 4, {"x": 512, "r0_": 1024})
    configs = [kernel_config("triton::reduction", {"XBLOCK": x, "R0_BLOCK": 512, "num_warps": 4}) for x in (1, 8)]
    timings = tuple(map(Timing, configs, (12.0, 10.0)))
    with Store.open(database_url) as store:
        store.write([replace(samples.measurement(1, problem=problem), timings=timings)])
    with Feed(database_url) as feed:
        page = parts(feed, PROBLEM, problem=problem.key.hex())
        assert page["problem"].part.title == "reduction bf16 x512 r0_1024 3f2a91b0"  # type: ignore[union-attr] # as above
        assert [row["blocks"] for row in rows(page["configs"])] == ["R0_BLOCK=512 XBLOCK=8", "R0_BLOCK=512 XBLOCK=1"]
        heads = [column.head for column in page["configs"].part.columns]  # type: ignore[union-attr]
        assert heads[:5] == ["place", "template", "blocks", "stages", "warps"]
        assert not page.keys() & {"reproduce", "ranking"}
        listed = rows(parts(feed, PROBLEM)["problems"])
    assert [row["problem"] for row in listed] == ["reduction bf16 x512 r0_1024 3f2a91b0"]


def test_gradients_of_attention_are_told_apart_by_their_blocks(database_url: str) -> None:
    """Which have no columns of their own."""
    problem = parse_problem("flex_attention_backward:1x8x512x64/causal").problem()
    names = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    configs = [
        kernel_config(f"triton::{problem.op}", {**dict.fromkeys(names, size), "num_stages": 3, "num_warps": 4})
        for size in (32, 64)
    ]
    timings = tuple(map(Timing, configs, (12.0, 10.0)))
    with Store.open(database_url) as store:
        store.write([replace(samples.measurement(1, problem=problem), timings=timings)])
    with Feed(database_url) as feed:
        page = parts(feed, PROBLEM, problem=problem.key.hex())
        shown = [" ".join(f"{name}={size}" for name in sorted(names)) for size in (64, 32)]
        assert [row["blocks"] for row in rows(page["configs"])] == shown
        heads = [column.head for column in page["configs"].part.columns]  # type: ignore[union-attr] # as above
    assert heads[:5] == ["place", "template", "blocks", "stages", "warps"]


def test_a_scaled_product_has_a_page(feed: Feed) -> None:
    """Its roofline counts the peak of float8 and the dtype of the output."""
    page = parts(feed, PROBLEM, problem=SCALED.key.hex(), model="(none)")
    assert page["problem"].part.title == SCALED_TEXT  # type: ignore[union-attr] # as above
    flops, moved = 2 * 16 * 6144 * 4096, 4096 * (16 + 6144) + 2 * 16 * 6144
    assert facts(page["problem"])["speed"] == f"{flops / 10 / 1e6:,.1f} TFLOP/s"
    share = next(fact.note for fact in page["problem"].part.facts if fact.label == "speed")  # type: ignore[union-attr]
    assert share == f"{100 * (moved / 4.8e12 * 1e6 + 2) / 10:.0f}% of the roofline's"


def test_a_map_leaves_out_what_has_no_sizes(feed: Feed) -> None:
    """An unknown op is in no cell."""
    page = parts(feed, COVERAGE)
    assert facts(page["shown"])["problems"] == "2"
    assert {row["op"] for row in rows(page["kinds"])} == {"mm", "scaled_mm"}
    assert isinstance(COVERAGE, Page)


def test_other_lists_are_not_called_default(feed: Feed) -> None:
    """Inductor's DEFAULT list of a scaled product is another than that of a plain one."""
    for problem, is_known in ((samples.matmul(64, 256, 128), True), (SCALED, False)):
        page = parts(feed, PROBLEM, problem=problem.key.hex(), model="(none)")
        assert all((row["is_default"] is not None) is is_known for row in rows(page["configs"]))


def test_a_hole_between_groups_is_filled_by_groups() -> None:
    """The total goes with the size of the hole, not with that of its neighbors."""
    dimensions = '{"form": "2d3d", "total": 2048}'
    kind = {"op": "grouped_mm", "dtype": "bfloat16", "tf32": False, "layout": "nt", "b": 8, "dimensions": dimensions}
    filling = Filling(kind, [], ("m", "n"), "k")
    assert str(filling.problem((64, 512))) == "grouped_mm:512x512x64:8/nt/bf16/2d3d"
