"""Two environments or devices beside each other: which sides, what changed in the mean, what is beyond noise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Any

import pytest

import samples
from diode_explorer.feed import Feed
from diode_explorer.pages.change.page import CHANGE
from diode_explorer.pages.change.pairs import SLICES
from diode_explorer.pages.page import NotThereError
from diode_store.candidates.names import kernel_config
from diode_store.records import TimingMethod
from diode_store.timing.noise import usual_sigma
from diode_store.warehouse.store import Store
from paged import facts, faults, parts, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.records import Environment, Hardware, Measurement

VENDOR, TRITON = kernel_config("mm", {}), samples.triton_config(64)
OLD = samples.ENVIRONMENT
NEW = replace(OLD, torch="2.13.0", triton="3.7.0")
NEWEST = replace(OLD, torch="2.15.0", triton="3.8.0")
HIDDEN = TimingMethod("median", launch_hidden=True, regime="graph")
SHAPES = ((64, 64, 64), (512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096))
BEFORE = ((10.0, 12.0), (20.0, 16.0), (40.0, 44.0), (400.0, 500.0))
"""Of the vendor and of Triton, in us: the first is a tie of neither, of the second Triton is faster."""
FACTORS = (1.0, 1.1, 0.5, 1.25)
"""What becomes of the times of each shape with NEW."""


class Timed:
    """Makes measurements, each a day after the one before."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(
        self,
        environment: Environment,
        place: int,
        factor: float = 1.0,
        *,
        hardware: Hardware = samples.H200,
        regime: str = "graph",
    ) -> Measurement:
        """Return the times of a shape, in one environment."""
        self._number += 1
        vendor, triton = (us * factor for us in BEFORE[place])
        return replace(
            samples.measurement(self._number),
            environment=environment,
            hardware=hardware,
            problem=samples.matmul(*SHAPES[place], "float16" if place else "bfloat16"),
            timings=samples.timings_of({VENDOR: vendor, TRITON: triton}),
            timing_method=replace(HIDDEN, regime=regime),
            measured_at=samples.MEASURED_AT + timedelta(days=self._number),
        )


@pytest.fixture
def timed() -> Timed:
    """Return what makes measurements."""
    return Timed()


@pytest.fixture
def feed(database_url: str, timed: Timed) -> Iterator[Feed]:
    """Return a feed over four problems in two environments; one was timed in another regime as well, on one side."""
    with Store.open(database_url) as store:
        store.write([timed(OLD, place) for place in range(4)])
        store.write([timed(NEW, place, FACTORS[place]) for place in (3, 1, 0, 2)])
        store.write([timed(NEW, 0, 9.0, regime="write_flush")])
    with Feed(database_url) as found:
        yield found


def keys(feed: Feed) -> dict[str, str]:
    """Return the key of each environment by its torch."""
    return dict(feed.state.connection.execute("SELECT torch, lower(hex(key)) FROM environments").fetchall())


def compared(feed: Feed, **filters: Any) -> tuple[str, str, str]:
    """Return both sides and what they have in common."""
    found = facts(parts(feed, CHANGE, **filters)["sides"])
    return found["before"], found["after"], found["in common"]


def test_the_mean_of_what_was_timed_on_both_sides(feed: Feed) -> None:
    """In the same regime; worked out by hand, with the interval of its mean."""
    page = parts(feed, CHANGE)
    (every,) = rows(parts(feed, CHANGE, slice="device")["slices"])
    logs = [log(factor) for factor in FACTORS]
    mean = sum(logs) / 4
    error = 1.96 * sqrt(sum((each - mean) ** 2 for each in logs) / 3 / 4)
    assert every["slice"] == "NVIDIA H200"
    assert [every[name] for name in ("problems", "slower", "faster")] == [4, 2, 1]
    found = [every[name] for name in ("mean_ratio", "mean_from", "mean_to", "vendor_ratio", "triton_ratio")]
    assert found == pytest.approx([exp(mean), exp(mean - error), exp(mean + error), exp(mean), exp(mean)])
    assert [every["quarter_from"], every["quarter_to"]] == pytest.approx([0.875, 1.1375])
    assert facts(page["sides"]) == {
        "before": "torch 2.11.0+cu130",
        "after": "torch 2.13.0",
        "in common": "4 problems",
        "best time": f"{exp(mean):.4f}",
        "vendor's best": f"{exp(mean):.4f}",
        "Triton's best": f"{exp(mean):.4f}",
        "slower": "2",
        "faster": "1",
        "instead": "swap the sides",
    }


def test_noise_is_that_of_the_view(feed: Feed) -> None:
    """Two sigmas of the side that scatters more; the same problems are beyond it as in the view regressions."""
    (row,) = (row for row in rows(parts(feed, CHANGE, slice="time")["slices"]) if row["slice"] == "10 to 30 us")
    assert row["noise_pct"] == pytest.approx(200 * usual_sigma(16.0, [HIDDEN]))
    view = feed.state.connection.execute(
        "SELECT verdict, runtime_us_before, sigmas FROM regressions WHERE scope = 'best' ORDER BY ALL"
    ).fetchall()
    found = [
        (verdict, row["before_us"], row["sigmas"])
        for verdict in ("faster", "slower")
        for row in rows(parts(feed, CHANGE, verdict=verdict)["most"])
    ]
    assert sorted(found) == view
    assert len(view) == 3


def test_what_broke_first_and_what_broke_most(feed: Feed) -> None:
    """By when it was first timed after, and by ratio; what got faster is asked for."""
    page = parts(feed, CHANGE)
    assert [row["ratio"] for row in rows(page["first"])] == pytest.approx([1.25, 1.1])
    assert [row["problem"] for row in rows(page["most"])] == [
        "mm fp16 4096x4096x4096 nn",
        "mm fp16 512x512x512 nn",
    ]
    assert [row["ratio"] for row in rows(parts(feed, CHANGE, verdict="faster")["most"])] == [0.5]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("op", [("mm", 4)]),
        ("dtype", [("float16", 3), ("bfloat16", 1)]),
        ("layout", [("nn", 4)]),
        ("device", [("NVIDIA H200", 4)]),
        ("regime", [("graph", 4)]),
        ("family", [(None, 4)]),
        ("size", [("under 1 GFLOP", 2), ("1 to 10 GFLOP", 1), ("100 GFLOP to 1 TFLOP", 1)]),
        ("time", [("10 to 30 us", 2), ("30 to 100 us", 1), ("100 us to 1 ms", 1)]),
        ("winner", [("vendor", 3), ("Triton", 1)]),
    ],
)
def test_a_slice_alone_is_what_the_slice_said(feed: Feed, name: str, expected: list[tuple[str | None, int]]) -> None:
    """Each leads to a page that compares its problems."""
    page = parts(feed, CHANGE, slice=name)
    assert [(row["slice"], row["problems"]) for row in rows(page["slices"])] == expected
    for value, problems in expected:
        if value is not None:
            (alone,) = rows(parts(feed, CHANGE, slice=name, **{name: value})["slices"])
            assert (alone["slice"], alone["problems"]) == (value, problems)
    assert name in SLICES


@pytest.mark.long
def test_the_last_two_environments_are_compared(feed: Feed, database_url: str, timed: Timed) -> None:
    """Of the device that has most in common; others can be asked for, in any order."""
    with Store.open(database_url) as store:
        store.write([timed(NEWEST, 1), timed(OLD, 2, hardware=samples.H100), timed(NEW, 2, hardware=samples.H100)])
    with Feed(database_url) as newer:
        key = keys(newer)
        old, new, newest = (key[each.torch] for each in (OLD, NEW, NEWEST))
        assert compared(newer) == ("torch 2.13.0", "torch 2.15.0", "1 problem")
        assert compared(newer, before=old) == ("torch 2.11.0+cu130", "torch 2.15.0", "1 problem")
        assert compared(newer, after=new) == ("torch 2.11.0+cu130", "torch 2.13.0", "5 problems")
        assert compared(newer, after=old) == ("torch 2.15.0", "torch 2.11.0+cu130", "1 problem")
        assert compared(newer, before=newest, after=new) == ("torch 2.15.0", "torch 2.13.0", "1 problem")
        assert compared(newer, device=samples.H100.name) == ("torch 2.11.0+cu130", "torch 2.13.0", "1 problem")


def test_two_devices(feed: Feed, database_url: str, timed: Timed) -> None:
    """In the newest environment that both have; in that of each where they have none in common."""
    with Store.open(database_url) as store:
        store.write([timed(OLD, place, 2.0, hardware=samples.H100) for place in range(3)])
        store.write([timed(NEW, 0, 3.0, hardware=samples.H100)])
        store.write([timed(NEWEST, 0, 4.0, hardware=samples.H100_PCIE)])
    with Feed(database_url) as newer:
        page = parts(newer, CHANGE, by="device")
        assert compared(newer, by="device") == (samples.H100.name, samples.H200.name, "1 problem")
        (mean,) = (row["mean_ratio"] for row in rows(page["slices"]))
        assert mean == pytest.approx(1 / 3)
        assert compared(newer, by="device", environment=keys(newer)[OLD.torch])[2] == "3 problems"
        other = {"by": "device", "before": samples.H200.name, "after": samples.H100_PCIE.name}
        notes = {fact.label: fact.note for fact in parts(newer, CHANGE, **other)["sides"].part.facts}  # type: ignore[union-attr]
        assert compared(newer, **other)[2] == "1 problem"
        assert "no environment in common" in str(parts(newer, CHANGE, **other)[""].part)
        assert "" not in page
        assert (notes["before"][:12], notes["after"][:12]) == ("torch 2.13.0", "torch 2.15.0")


def test_where_a_click_leads(feed: Feed) -> None:
    """A dot to its slice alone, a fact to the sides turned round."""
    page = parts(feed, CHANGE, slice="dtype")
    assert [point["address"] for point in page["change"].spec["data"]["values"]] == [
        "/change?dtype=float16&slice=dtype",
        "/change?dtype=bfloat16&slice=dtype",
    ]
    (swap,) = (fact.address for fact in page["sides"].part.facts if fact.value == "swap the sides")  # type: ignore[union-attr]
    key = keys(feed)
    assert swap == f"/change?before={key[NEW.torch]}&after={key[OLD.torch]}&slice=dtype"


def test_one_environment_and_one_device(database_url: str, timed: Timed) -> None:
    """Say that there is nothing to compare, and what to do."""
    with Store.open(database_url) as store:
        store.write([timed(OLD, 0)])
    with Feed(database_url) as feed:
        page = parts(feed, CHANGE)
    assert facts(page["sides"]) == {"environments": "1", "devices": "1"}
    assert "repeat a sweep after" in str(page[""].part)


def test_one_environment_and_two_devices(database_url: str, timed: Timed) -> None:
    """Lead to the comparison of devices."""
    with Store.open(database_url) as store:
        store.write([timed(OLD, 0), timed(OLD, 0, 2.0, hardware=samples.H100)])
    with Feed(database_url) as feed:
        assert facts(parts(feed, CHANGE)["sides"])["instead"] == "compare devices"
        assert compared(feed, by="device")[2] == "1 problem"


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"before": "00"}, "the warehouse has no timings of the environment 00"),
        ({"by": "device", "after": "none"}, "the warehouse has no timings of the device none"),
    ],
)
def test_sides_that_are_not_there(feed: Feed, filters: dict[str, Any], said: str) -> None:
    """Are refused in a line."""
    with pytest.raises(NotThereError, match=said):
        parts(feed, CHANGE, **filters)


def test_one_side_twice(feed: Feed) -> None:
    """Is said where another can be chosen."""
    (only,) = parts(feed, CHANGE, by="device", before=samples.H200.name, after=samples.H200.name).values()
    assert "Both sides are the same" in str(only.part)


def test_nothing_matches(feed: Feed) -> None:
    """The sides are still named."""
    page = parts(feed, CHANGE, layout="tt")
    assert list(page) == ["sides", ""]
    assert facts(page["sides"])["after"] == "torch 2.13.0"


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SLICES)
def test_a_picture_is_vega_lite(feed: Feed, name: str) -> None:
    """For every kind of slice, also with one problem and without a name."""
    assert faults(parts(feed, CHANGE, slice=name)["change"]) == []
