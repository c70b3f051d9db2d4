"""Fixtures of the commands' tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kernels_to_ask import FAST, SLOW, VENDOR

from diode_store.records import Outcome, Problem, TensorSpec, Timing

if TYPE_CHECKING:
    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store


@pytest.fixture
def warehouse(
    store: Store, database_url: str, make_measurement: MakeMeasurement, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """Return a warehouse that is the default one, with an mm and a bmm on an H200."""
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    bmm = Problem.create(
        "bmm", (TensorSpec("float16", (3, 8, 16), (128, 16, 1)), TensorSpec("float16", (3, 16, 24), (384, 1, 16)))
    )
    times = (Timing(VENDOR, 100.0), Timing(FAST, 80.0), Timing(SLOW, 82.5))
    failed = Timing(SLOW, None, Outcome.OUT_OF_RESOURCES)
    store.write(
        [
            make_measurement(1, timings=times),
            make_measurement(2, problem=bmm, timings=(Timing(VENDOR, 7.25), failed)),
        ]
    )
    return store
