"""What a tuning run chooses from, by how many kernels it is timed, and what counts as measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import samples
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere
from diode_integration.tuning.pool import Pool
from diode_store.errors import SettingsError
from diode_store.records import Source
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from pathlib import Path

H200 = device_elsewhere("h200")[0]
NAMED = ProblemRequest(shapes=("mm:64x64x64", "bmm:100x100x64:7"))


def pool(database: Path | str, request: ProblemRequest = NAMED, budget_s: float = 600.0, **options: Any) -> Pool:
    """Return the pool of an H200 with 16 cores."""
    return Pool([H200], request, budget_s=budget_s, database=str(database), cores=16, **options)


@pytest.mark.parametrize(
    ("budget_s", "space"), [(1200.0, "EXHAUSTIVE"), (120.0, "SAMPLE:96"), (60.0, "SAMPLE:48"), (5.0, "SAMPLE:24")]
)
def test_few_products_are_timed_by_more_kernels(tmp_path: Path, budget_s: float, space: str) -> None:
    """By as many as there is time for; they come first, before those that keep them company."""
    found = pool(tmp_path / "absent.db", budget_s=budget_s)
    assert (str(found.space), len(found.problems)) == (space, 60)
    known, left = found.known_and_left()
    first = found.chosen(known, left, 1200.0)[:2]
    assert {str(problem) for problem in first} == {"mm:64x64x64/nn/bf16", "bmm:100x100x64:7/nn/bf16"}


def test_the_standard_set_is_timed_by_few(tmp_path: Path) -> None:
    """However long there is."""
    found = pool(tmp_path / "absent.db", ProblemRequest(), budget_s=36000.0)
    assert (str(found.space), len(found.problems) > 1990) == ("SAMPLE:24", True)


def test_what_is_left_out(tmp_path: Path) -> None:
    """It is neither named, nor company, nor of the standard set; with nothing left that is said."""
    absent = tmp_path / "absent.db"
    both = {SweepProblem("mm", 64, 64, 64).problem().key, SweepProblem("bmm", 100, 100, 64, 7).problem().key}
    one = list(both)[:1]
    assert not set(one) & set(pool(absent, left_out=one).problems)
    standard = set(list(pool(absent, ProblemRequest()).problems)[:5])
    assert not standard & set(pool(absent, ProblemRequest(), left_out=standard).problems)
    with pytest.raises(SettingsError, match="of what is asked for nothing"):
        pool(absent, left_out=both)


@pytest.mark.parametrize(("measured", "is_known"), [("EXHAUSTIVE", True), ("SAMPLE:96", False), ("odd", False)])
def test_what_was_timed_by_fewer_is_measured_again(database_url: str, measured: str, is_known: bool) -> None:  # noqa: FBT001
    """A named product that an earlier run timed by fewer kernels is no known one; to train it counts all the same."""
    product = SweepProblem("mm", 64, 64, 64).problem()
    record = samples.measurement(1, hardware=H200.hardware, problem=product, search_space=measured, source=Source.SWEEP)
    with Store.open(database_url) as store:
        store.write([record, replace(record, uid=b"\1" * 16, hardware=samples.H100)])
    found = pool(database_url, budget_s=1200.0)
    known, left = found.known_and_left()
    assert ([str(problem) for problem in known] == ["mm:64x64x64/nn/bf16"]) is is_known
    assert len(known) + len(left) == 60
    assert found.measured() == {product.key}
