"""What goes in comes out the same from SQLite and from PostgreSQL: records, files, queries and the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import content

import samples
from diode_store.records import Timing
from diode_store.warehouse.measurements import iter_measurements
from diode_store.wire import codec
from record_strategies import MEASUREMENTS

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.records import Measurement
    from diode_store.warehouse.store import Store

H200 = ("--hardware", "h200")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache that no other test's database of the same name has."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))


def comparable(measured: Measurement) -> Measurement:
    """Return a measurement as a warehouse gives it back: timings by config, its time in UTC."""
    time = measured.measured_at and measured.measured_at.astimezone(UTC)
    return replace(measured, measured_at=time, timings=tuple(sorted(measured.timings, key=lambda t: t.config.key)))


def test_every_field_comes_back(any_store: Store, any_url: str) -> None:
    """A measurement with everything and one with nothing are what they were, in the order they were written."""
    written = [samples.measurement(9, **samples.EVERY_FIELD), samples.measurement(3, measured_at=None)]
    any_store.write(written)
    assert content(any_url) == [comparable(measured) for measured in written]


@pytest.mark.quick(1)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(batch=st.lists(MEASUREMENTS, max_size=3, unique_by=lambda measured: measured.uid))
def test_any_record_comes_back(any_store: Store, batch: list[Measurement]) -> None:
    """Whatever a collector hands over comes back with the same keys and numbers."""
    decoded = [codec.decode(codec.encode(measured)) for measured in batch]
    known = any_store.known([measured.uid for measured in decoded])
    any_store.write(decoded)
    stored = {measured.uid: comparable(measured) for measured in iter_measurements(any_store.engine)}
    for measured in decoded:
        if measured.uid in known:
            continue
        found, wanted = stored[measured.uid], comparable(measured)
        assert [(t.config.key, *t[1:]) for t in found.timings] == [(t.config.key, *t[1:]) for t in wanted.timings]
        assert found.problem.key == wanted.problem.key
        assert (found.measured_at, found.extra, found.timing_method) == (
            wanted.measured_at,
            wanted.extra,
            wanted.timing_method,
        )


def test_configs_that_differ_as_true_and_one(any_store: Store, any_url: str) -> None:
    """They are two rows, each with its own time, whether they come as records or are decoded."""
    configs = [replace(samples.triton_config(), kwargs=(("EVEN_K", value),)) for value in (True, 1)]
    timings = tuple(Timing(config, float(us)) for us, config in enumerate(configs, 1))
    written = [samples.measurement(number, timings=timings) for number in (1, 2)]
    any_store.write([written[0], codec.decode(codec.encode(written[1]))])
    expected = {(type(dict(config.kwargs)["EVEN_K"]), us) for config, us, *_ in timings}
    for measured in content(any_url):
        assert {(type(dict(t.config.kwargs)["EVEN_K"]), t.runtime_us) for t in measured.timings} == expected


def test_a_file_in_and_out(any_url: str, diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """Import adds each measurement once; an export of it makes the same warehouse again."""
    at, out, second = ("--database", any_url), tmp_path / "out.jsonl", f"{tmp_path}/second.db"
    assert diode("import", *H200, *at, str(jsonl_path)).out == "6 measurements with 79 timings added\n"
    again = diode("import", *H200, *at, str(jsonl_path))
    assert again.out == "nothing new: all 6 measurements were there already\n"
    assert diode("export", "-o", str(out), *at).out == f"{out}: 6 measurements with 79 timings\n"
    assert diode("db", "upgrade", "--database", second).code == 0
    assert diode("import", str(out), "--database", second).out == "6 measurements with 79 timings added\n"
    assert content(second) == content(any_url)


@pytest.mark.quick(1)
def test_queries_see_what_was_just_committed(any_store: Store, any_url: str, diode: RunCommand) -> None:
    """The views answer from a cache that is brought up to date first, whichever database it copies."""
    query = ("query", "SELECT m, runtime_us FROM fastest_configs ORDER BY m", "--json", "--database", any_url)
    any_store.write([samples.measurement(1)])
    assert json.loads(diode(*query).out) == [{"m": 65, "runtime_us": 10.5}]
    any_store.write([samples.measurement(2, runtimes=(3.5, 2.25))])
    assert json.loads(diode(*query).out) == [{"m": 65, "runtime_us": 10.5}, {"m": 66, "runtime_us": 2.25}]
