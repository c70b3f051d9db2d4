"""What a tuning run chooses from, by how many kernels it is timed, and what counts as measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import samples
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import device_elsewhere, find_devices
from diode_store.candidates.operands import has_whole_rows
from diode_store.errors import HardwareError, SettingsError
from diode_store.records import Source
from diode_store.warehouse.store import Store
from diode_tuning.pool import Pool

if TYPE_CHECKING:
    from pathlib import Path

    from diode_tuning.plan import Round

H200 = device_elsewhere("h200")[0]
NAMED = ProblemRequest(shapes=("mm:64x64x64", "bmm:100x100x64:7"))


def pool(database: Path | str, request: ProblemRequest = NAMED, **options: Any) -> Pool:
    """Return the pool of an H200 with 16 cores."""
    return Pool([H200], request, database=str(database), cores=16, **options)


def spaces(rounds: list[Round]) -> list[str]:
    """Return by what each round times."""
    return [each.search_space for each in rounds]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("budget_s", "space"),
    [(100.0, "EXHAUSTIVE"), (5.0, None), (36.0, "SAMPLE:192"), (29.5, "SAMPLE:96"), (25.0, "SAMPLE:48")],
)
def test_few_products_are_timed_by_more_kernels(tmp_path: Path, budget_s: float, space: str | None) -> None:
    """In a round of their own, by as many as there is time for; then those that keep them company, by few."""
    found = pool(tmp_path / "absent.db")
    rounds = found.rounds(budget_s)
    assert spaces(rounds) == (["GUIDED:12"] if space is None else [space, "GUIDED:12"])
    assert sum(each.budget_s for each in rounds) == pytest.approx(budget_s)
    assert len(found.problems) == 60
    first = SearchSpace.parse(rounds[0].search_space)
    known, left = found.known_and_left(first)
    assert (known, len(left)) == ([], 60 if space is None else 2)
    named = found.chosen(known, left, 1200.0, first)[:2]
    assert {str(problem) for problem in named} == {"mm:64x64x64/nn/bf16", "bmm:100x100x64:7/nn/bf16"}


def test_many_named_products_have_no_company(tmp_path: Path) -> None:
    """As they are enough; where there is time they are timed by more kernels, else by few."""
    found = pool(tmp_path / "absent.db", ProblemRequest(families=("llama3-8b",), dtypes=("bf16", "fp16", "tf32")))
    assert len(found.problems) > 60
    assert spaces(found.rounds(7200.0)) == ["SAMPLE:192"]
    assert spaces(found.rounds(60.0)) == ["GUIDED:12"]


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("budget_s", "rounds"), [(5.0, 1), (1200.0, 3), (180.0, 1), (300.0, 1), (600.0, 2), (36000.0, 3)]
)
def test_the_standard_set_is_timed_by_few(tmp_path: Path, budget_s: float, rounds: int) -> None:
    """In rounds of a thousand problems at least, or in one; then by the vendor's kernels, if samples leave any."""
    found = pool(tmp_path / "absent.db", ProblemRequest())
    planned = found.rounds(budget_s)
    vendor_s = 0.08 * budget_s if 60 < budget_s < 3600 else 0.0
    assert spaces(planned) == ["GUIDED:12"] * rounds + ["VENDOR"] * (vendor_s > 0)
    assert [each.budget_s for each in planned[:rounds]] == pytest.approx([(budget_s - vendor_s) / rounds] * rounds)
    assert sum(each.budget_s for each in planned) == pytest.approx(budget_s)
    assert len(found.problems) > 9900


@pytest.mark.long
def test_no_more_rounds_than_problems_fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one by the vendor's kernels where samples leave nothing; what is measured fills none."""
    named = tuple(f"mm:{8 * i}x512x512" for i in range(1, 1501))
    few = pool(tmp_path / "absent.db", ProblemRequest(shapes=named))
    all_s = few.estimate(few.space).seconds([*few.problems.values()])
    assert spaces(few.rounds(1.5 * all_s)) == ["GUIDED:12"]
    assert spaces(few.rounds(0.9 * all_s)) == ["GUIDED:12", "VENDOR"]
    standard = pool(tmp_path / "absent.db", ProblemRequest())
    monkeypatch.setattr(Pool, "measured", lambda *_: {*list(standard.problems)[500:]})
    assert spaces(standard.rounds(36000.0)) == ["GUIDED:12"]
    cpu = Pool(find_devices(["cpu"]), ProblemRequest(), database=str(tmp_path / "absent.db"))
    assert spaces(cpu.rounds(10 * 3600.0)) == ["DEFAULT"]


@pytest.mark.long
def test_more_cores_and_devices_make_more_rounds(tmp_path: Path) -> None:
    """As they time more problems in the same minutes."""
    devices = [H200, replace(H200, name="cuda:1")]
    found = Pool(devices, ProblemRequest(), database=str(tmp_path / "absent.db"), cores=32)
    of_samples = [spaces(found.rounds(60.0 * minutes)).count("GUIDED:12") for minutes in (3, 5, 10)]
    assert of_samples == [1, 2, 3]


@pytest.mark.long
def test_what_shares_kernels_costs_less(tmp_path: Path) -> None:
    """Whole rows of the standard set do; odd ones, which are measured nearly as often, have kernels of their own."""
    found = pool(tmp_path / "absent.db", ProblemRequest())
    space = found.space
    known, left = found.known_and_left(space)
    chosen = found.chosen(known, left, 120.0, space)
    odd = [problem for problem in chosen if not has_whole_rows(problem)]
    whole = [problem for problem in chosen if has_whole_rows(problem)]
    assert 0.3 < len(odd) / len(chosen) < 0.5
    estimate = found.estimate(space)
    of_each = [estimate.seconds(some) / sum(map(estimate.choices, some)) for some in (whole, odd)]
    assert of_each[0] < 0.9 * of_each[1]


@pytest.mark.long
def test_few_that_are_timed_by_many_share_nothing(tmp_path: Path) -> None:
    """What is named and timed by many kernels has kernels of its own, and on a CPU everything has."""
    found = pool(tmp_path / "absent.db")
    assert [found.shares_kernels(SearchSpace.parse(space)) for space in ("GUIDED:12", "SAMPLE:96")] == [True, False]
    cpu = find_devices(("cpu",))
    assert not Pool(cpu, NAMED, database=str(tmp_path / "absent.db")).shares_kernels(SearchSpace("DEFAULT"))


@pytest.mark.long
def test_what_a_cpu_does_not_time(tmp_path: Path) -> None:
    """Is refused before anything is planned, if there is nothing else."""
    cpu, absent = find_devices(("cpu",)), str(tmp_path / "absent.db")
    half = ProblemRequest(shapes=("mm:64x64x64",), dtypes=("bf16",))
    with pytest.raises(HardwareError, match=r"^on a CPU oneDNN takes mm and addmm in bfloat16 over, "):
        Pool(cpu, half, database=absent)
    mixed = replace(half, shapes=("mm:64x64x64", "bmm:64x64x64:2"))
    assert len(Pool(cpu, mixed, database=absent).asked) == 2


def test_how_long_it_takes_to_have_enough(tmp_path: Path) -> None:
    """As long as what is missing of ten problems; where too few are left nothing is enough."""
    found = pool(tmp_path / "absent.db")
    left = [*found.problems.values()]
    seconds = found.estimate(found.space).seconds
    assert [found.enough_s(there, left) for there in (0, 7, 12)] == [seconds(left[:10]), seconds(left[:3]), 0.0]
    assert (found.enough_s(7, left[:2]), found.enough_s(8, left[:2])) == (None, seconds(left[:2]))


@pytest.mark.long
def test_what_is_left_out(tmp_path: Path) -> None:
    """In whichever dtype, and as it is lowered, it is neither named, nor company, nor of the standard set."""
    absent = tmp_path / "absent.db"
    one = SweepProblem("bmm", 64, 64, 64, 1, "float16")
    found = pool(absent, left_out=[one])
    assert found.left_out == 1
    assert "mm:64x64x64/nn/bf16" not in map(str, found.problems.values())
    assert len(found.problems) == 60
    standard = list(pool(absent, ProblemRequest()).problems.values())[:5]
    left = pool(absent, ProblemRequest(), left_out=[replace(problem, dtype="float16") for problem in standard[:1]])
    assert (left.left_out >= 1, standard[0] in left.problems.values()) == (True, False)
    company = [problem for problem in found.problems.values() if str(problem) != "bmm:100x100x64:7/nn/bf16"]
    other = pool(absent, left_out=[one, *company])
    assert not set(company) & set(other.problems.values())
    both = [one, SweepProblem("bmm", 100, 100, 64, 7)]
    with pytest.raises(SettingsError, match=r"^--leave-out has all requested problems; name more$"):
        pool(absent, left_out=both)
    large = ProblemRequest(shapes=("mm:262144x262144x16384",))
    with pytest.raises(
        SettingsError, match=r"^no requested problem fits into the memory of NVIDIA H200; name smaller ones$"
    ):
        pool(absent, large)


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize(("measured", "is_known"), [("EXHAUSTIVE", True), ("SAMPLE:96", False), ("odd", False)])
def test_what_was_timed_by_fewer_is_measured_again(database_url: str, measured: str, is_known: bool) -> None:  # noqa: FBT001
    """A named product that an earlier run timed by fewer kernels is no known one; to train it counts all the same."""
    product = SweepProblem("mm", 64, 64, 64).problem()
    record = samples.measurement(1, hardware=H200.hardware, problem=product, search_space=measured, source=Source.SWEEP)
    with Store.open(database_url) as store:
        store.write([record, replace(record, uid=b"\1" * 16, hardware=samples.H100)])
    found = pool(database_url)
    known, left = found.known_and_left(SearchSpace("EXHAUSTIVE"))
    assert ([str(problem) for problem in known] == ["mm:64x64x64/nn/bf16"]) is is_known
    assert len(known) + len(left) == 2
    assert found.measured() == {product.key}


@pytest.mark.long
def test_what_the_vendors_kernels_were_timed_of(database_url: str) -> None:
    """Is no problem to train on by itself, and is measured again by a sample, but not by the vendor's kernels."""
    product = SweepProblem("mm", 64, 64, 64).problem()
    record = samples.measurement(1, hardware=H200.hardware, problem=product, search_space="VENDOR", source=Source.SWEEP)
    with Store.open(database_url) as store:
        store.write([record])
    found = pool(database_url)
    by_vendor, by_sample = (found.known_and_left(space) for space in (SearchSpace("VENDOR"), found.space))
    assert ([str(problem) for problem in by_vendor[0]], by_sample[0]) == (["mm:64x64x64/nn/bf16"], [])
    assert (len(by_vendor[1]), len(by_sample[1])) == (59, 60)
    assert found.measured() == set()
