"""The first page: what it draws, and what a filter leaves of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import samples
from diode_explorer.feed import Feed
from diode_explorer.pages.overview import OVERVIEW
from diode_store.candidates.names import kernel_config
from diode_store.values.times import duration_text
from diode_store.warehouse.store import Store
from paged import parts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

VENDOR, TRITON = kernel_config("mm", {}), samples.triton_config(64)


@pytest.fixture
def feed(database_url: str) -> Iterator[Feed]:
    """Return a feed over problems of two dtypes and two devices; one lacks the vendor's kernel."""
    measured = [
        samples.measurement(number, problem=samples.matmul(*sizes, dtype), timings=samples.timings_of(times), **more)
        for number, (sizes, dtype, times, more) in enumerate(
            [
                ((64, 64, 64), "bfloat16", {VENDOR: 8.0, TRITON: 10.0}, {}),
                ((64, 64, 128), "bfloat16", {VENDOR: 12.0, TRITON: 10.0}, {}),
                ((64, 64, 64), "float16", {VENDOR: 30.0, TRITON: 10.0}, {}),
                ((64, 64, 256), "float16", {TRITON: 10.0}, {}),
                ((64, 64, 64), "float16", {VENDOR: 20.0, TRITON: 10.0}, {"hardware": samples.H100}),
            ]
        )
    ]
    with Store.open(database_url) as store:
        store.write(measured)
    with Feed(database_url) as found:
        yield found


def test_where_triton_beats_the_vendor(feed: Feed) -> None:
    """Groups come with the largest gain first, and each leads to its map; names are short."""
    part = parts(feed, OVERVIEW)["gains"]
    found = [(row["device"], row["dtype"], row["problems"], row["median_speedup"]) for row in rows(part)]
    h200, h100 = samples.H200.name, samples.H100.name
    assert found == [(h200, "float16", 1, 3.0), (h100, "float16", 1, 2.0), (h200, "bfloat16", 2, 1.0)]
    drawn = part.spec["data"]["values"]
    assert [point["group"] for point in drawn] == ["H200, mm fp16", "H100 80GB HBM3, mm fp16", "H200, mm bf16"]
    assert drawn[2]["address"] == "/coverage?device=NVIDIA+H200&op=mm&dtype=bfloat16&show=vendor"


def test_filters_of_the_picture(feed: Feed) -> None:
    """One device needs no name, and times by machine are not compared."""
    part = parts(feed, OVERVIEW, device=samples.H100.name)["gains"]
    assert [point["group"] for point in part.spec["data"]["values"]] == ["mm fp16"]
    assert "gains" not in parts(feed, OVERVIEW, machine="(unknown)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (754, "12 min"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (386_326.5, "4 d 11 h"),
        (10_000_000, "115 d"),
        (-90, "-1 min 30 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """A duration has its two largest units."""
    assert duration_text(seconds) == text
