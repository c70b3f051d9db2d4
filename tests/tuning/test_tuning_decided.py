"""What a model near to this device decided is what `diode tune` measures first."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import samples
from decided import decision
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_store.warehouse.store import Store
from diode_tuning.decided import decided_by_near
from diode_tuning.job import TuneRequest, TuningJob
from diode_tuning.plan import DeviceFolder, Round
from lanes import long

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.decisions import DecisionRecord

H100 = device_elsewhere("h100")[0]
NEAR = "NVIDIA H200"
PRODUCTS = [
    SweepProblem("mm", 48, 4096, 1096, layout="nt"),
    SweepProblem("bmm", 100, 100, 64, 7, "float32", allow_tf32=True),
]


def decided(number: int, product: SweepProblem, similar_to: str | None = NEAR, days: int = 0) -> DecisionRecord:
    """Return a decision on the H100."""
    at = samples.MEASURED_AT + timedelta(days=days)
    return decision(number, hardware=H100.hardware, problem=product.problem(), similar_to=similar_to, decided_at=at)


def test_what_is_found(any_url: str) -> None:
    """Each product of this device once, the latest first; not what others have, or no sweep times."""
    with Store.open(any_url) as store:
        store.write(
            [
                *(decided(number, PRODUCTS[0], days=number) for number in range(3)),
                decided(3, PRODUCTS[1], days=5),
                decided(4, SweepProblem("mm", 8, 8, 8), similar_to=None),
                replace(decided(5, SweepProblem("mm", 16, 8, 8)), hardware=samples.H200),
                decided(6, SweepProblem("mm", 8, 8, 16, dtype="float64"), days=9),
            ]
        )
    assert decided_by_near(any_url, H100.hardware) == [PRODUCTS[1], PRODUCTS[0]]


def test_nothing_without_a_warehouse(tmp_path: Path) -> None:
    """Which is the case before the first run."""
    assert decided_by_near(str(tmp_path / "absent.db"), H100.hardware) == []


@long
def test_they_are_planned_first(database_url: str, tmp_path: Path) -> None:
    """Before the standard set; what is named makes them no better."""
    with Store.open(database_url) as store:
        store.write([decided(number, product) for number, product in enumerate(PRODUCTS)])
    folder = DeviceFolder(tmp_path / "h100")
    job = TuningJob([H100], TuneRequest(ProblemRequest(), 60.0, database_url), folder, 16)
    chosen, _ = job.choose(1, Round(60.0, "GUIDED:12"), tmp_path / "interim.pt")
    assert set(chosen[:2]) == set(PRODUCTS)
    assert len(chosen) > 20
    named = TuneRequest(ProblemRequest(shapes=("mm:64x64x64",)), 60.0, database_url)
    alone = TuningJob([H100], named, folder, 16)
    assert len(alone.pool.problems) == 60
    assert str(alone.choose(1, Round(60.0, "GUIDED:12"), tmp_path / "interim.pt")[0][0]) == "mm:64x64x64/nn/bf16"
