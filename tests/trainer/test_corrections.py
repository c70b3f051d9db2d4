from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from synthetic import H200, MM, TRITON_ROWS, VENDOR_ROW, columns, learnable

from diode_store.errors import ModelError
from diode_trainer.card import MATMUL_PURPOSE, Card, Domain
from diode_trainer.corrections.correcting import (
    CONFIG_SD,
    PROBLEM_SD,
    SIDE_SD,
    MeasuredProblem,
    make_corrections,
    offsets_of,
)
from diode_trainer.corrections.corrections import VENDOR, Corrections, ProblemOffsets, read_corrections

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

TMA = "triton::mm_persistent_tma"
A, B = TRITON_ROWS[:2]
LITTLE = 1e-6


def measured(times: dict[tuple[Any, ...], float], *, count: int = 1, sigma: float = LITTLE) -> MeasuredProblem:
    """Return one problem whose configs took ``times``."""
    return MeasuredProblem(
        hardware=H200,
        shape=MM,
        columns=columns(*times),
        runtime_us=np.array(list(times.values())),
        count=np.full(len(times), count, dtype=np.int64),
        sigma=np.full(len(times), sigma),
    )


def corrected(times: dict[tuple[Any, ...], float], **options: float) -> ProblemOffsets:
    """Return the corrections of a model that predicts 100 us for everything."""
    problem = measured(times, **options)  # type: ignore[arg-type]
    found = offsets_of(problem, np.full(len(times), 100.0))
    assert found is not None
    return found


# --- what is expected of a model's errors


def test_what_was_measured_exactly_is_believed() -> None:
    """Without noise a measured config's correction leads to its measured time."""
    offsets = corrected({A: 110.0, VENDOR_ROW: 95.0}).of(columns(A, VENDOR_ROW))
    assert 100 * np.exp(offsets) == pytest.approx([110.0, 95.0], rel=1e-6)


def test_others_follow_by_the_part_that_they_share() -> None:
    """An error is split between problem, side and config by how much each part varies."""
    offsets = corrected({A: 100 * math.e}, sigma=0.05)
    problem, side, config, noise = PROBLEM_SD**2, SIDE_SD**2, CONFIG_SD**2, 0.05**2
    total = problem + side + config + noise
    other = (TMA, *A[1:])
    assert offsets.of(columns(A, B, other, VENDOR_ROW)) == pytest.approx(
        [(problem + side + config) / total, (problem + side) / total, problem / total, problem / total], rel=1e-9
    )


def test_corrections_are_the_best_linear_prediction() -> None:
    """They are what conditioning a normal distribution with these covariances gives."""
    rows = (A, B, (TMA, *A[1:]), VENDOR_ROW, ("aten::bias_addmm", *VENDOR_ROW[1:]))
    sides = ["triton::mm", "triton::mm", TMA, VENDOR, VENDOR]
    asked = (*rows, TRITON_ROWS[5], ("cpp::x", *A[1:]))
    asked_sides = [*sides, "triton::mm", "cpp::x"]
    sigma, count = np.array([0.01, 0.1, 0.02, 0.05, 0.3]), np.array([1, 2, 3, 1, 9])
    residual = np.array([0.05, -0.2, 0.1, 0.3, -0.1])
    problem = replace(measured(dict.fromkeys(rows, 1.0)), runtime_us=100 * np.exp(residual), sigma=sigma, count=count)

    def covariance(i: int, j: int) -> float:
        same_side = SIDE_SD**2 * (asked_sides[i] == asked_sides[j])
        return PROBLEM_SD**2 + same_side + CONFIG_SD**2 * (asked[i] == asked[j])

    among = np.array([[covariance(i, j) for j in range(len(rows))] for i in range(len(rows))])
    towards = np.array([[covariance(i, j) for j in range(len(rows))] for i in range(len(asked))])
    expected = towards @ np.linalg.solve(among + np.diag(sigma**2 / count), residual)
    found = offsets_of(problem, np.full(len(rows), 100.0))
    assert found is not None
    assert found.of(columns(*asked)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("few", "many"), [({"count": 1}, {"count": 9}), ({"sigma": 0.3}, {"sigma": 0.1})])
def test_little_is_believed_of_few_and_noisy_times(few: dict[str, Any], many: dict[str, Any]) -> None:
    """The fewer and the noisier, the nearer to what the model says."""
    less, more = (corrected({A: 150.0}, **{"sigma": 0.2, **how}).configs[A] for how in (few, many))
    assert 0 < less < more < math.log(1.5)


def test_what_never_ran_is_not_chosen() -> None:
    """A config of which every attempt failed is infinitely slow; others are not touched by that."""
    offsets = corrected({A: math.inf, B: 100.0})
    assert offsets.configs[A] == math.inf
    assert offsets.of(columns(A, B, TRITON_ROWS[2])).tolist() == [math.inf, 0.0, 0.0]


def test_hopeless_configs_are_left_out() -> None:
    """What is far behind the best, corrected or not, needs no entry; it gets its side's correction."""
    slow, wrong = TRITON_ROWS[2:4]
    rows = {A: 100.0, B: 101.0, slow: 500.0, wrong: 500.0}
    found = offsets_of(measured(rows), np.array([100.0, 100.0, 490.0, 100.0]))
    assert found is not None
    assert set(found.configs) == {A, B, wrong}


def test_what_the_model_cannot_predict_says_nothing() -> None:
    """A problem of which no measured config has a prediction has no corrections."""
    assert offsets_of(measured({A: 5.0}), np.array([math.inf])) is None


# --- many problems


class Noisy:
    """Predicts the times of synthetic problems, off by as much as a model is."""

    def __init__(self, seed: int = 0, off: float = CONFIG_SD) -> None:
        self.problems = learnable(60, seed=seed)
        generator = np.random.default_rng(seed)
        self.predicted = {e.shape: e.runtime_us * np.exp(generator.normal(0, off, len(e))) for e in self.problems}
        self.asked = {e.shape: np.arange(len(e)) for e in self.problems}
        """Which configs ``predict_us`` is asked about."""
        self.card = Card("noisy", MATMUL_PURPOSE, "base", 1, Domain())
        self.sha256 = "a" * 64

    def predict_us(self, shape: ProblemShape, _device: Hardware, asked: ConfigColumns) -> NDArray[np.float64]:
        """Return the prediction of each config that was measured."""
        assert len(asked) == len(self.asked[shape])
        return self.predicted[shape][self.asked[shape]]

    def reveal(self, noise: float, claimed: float, tried: int = 3, seed: int = 1) -> list[MeasuredProblem]:
        """Measure the configs that are predicted fastest."""
        generator = np.random.default_rng(seed)
        self.asked = {e.shape: np.argsort(self.predicted[e.shape])[:tried] for e in self.problems}
        found = []
        for example in self.problems:
            top = self.asked[example.shape]
            times = example.runtime_us[top] * np.exp(generator.normal(0, noise, tried))
            one = np.ones(tried, dtype=np.int64)
            sigma = np.full(tried, claimed)
            found.append(MeasuredProblem(H200, example.shape, example.columns.take(top), times, one, sigma))
        return found

    def regret(self, corrections: Corrections | None = None) -> float:
        """Return the geometric mean of the regret of the first pick."""
        logs = []
        for example in self.problems:
            times = self.predicted[example.shape]
            offsets = corrections.of(example.shape, H200) if corrections else None
            if offsets is not None:
                times = times * np.exp(offsets.of(example.columns))
            logs.append(math.log(example.runtime_us[np.argmin(times)] / example.runtime_us.min()))
        return math.exp(float(np.mean(logs)))


def test_corrections_help() -> None:
    """Having measured the three configs predicted fastest, the model's first pick is better."""
    model = Noisy(off=0.1)
    before = model.regret()
    after = model.regret(make_corrections(model, model.reveal(0.01, 0.01)))
    assert after - 1 < 0.5 * (before - 1)


@pytest.mark.parametrize("claimed", [0.4, 0.01], ids=["admitted", "concealed"])
def test_noise_does_little_harm(claimed: float) -> None:
    """Times that scatter by 40% change little, even when they are said to scatter by 1%: their scatter shows."""
    model = Noisy(off=0.1)
    before = model.regret()
    after = model.regret(make_corrections(model, model.reveal(0.4, claimed)))
    assert after - 1 < 1.25 * (before - 1)


def test_problems_are_told_when_they_are_done() -> None:
    """The callback hears of each problem."""
    heard: list[None] = []
    model = Noisy()
    found = make_corrections(model, model.reveal(0.01, 0.01), lambda: heard.append(None))
    assert len(heard) == len(model.problems)
    assert (found.model_sha256, found.model_name, len(found.problems)) == (model.sha256, "noisy", 60)


# --- the file


def some() -> Corrections:
    """Return the corrections of one problem."""
    offsets = ProblemOffsets(0.125, {VENDOR: -0.5, TMA: 0.25}, {A: 0.0625, B: math.inf})
    device = (H200.name, H200.arch, H200.multiprocessors)
    return Corrections("b" * 64, {(device, MM): offsets}, "mine", "2026-11-22T10:00:00+00:00")


def test_corrections_survive_their_file(tmp_path: Path) -> None:
    """What is read is what was written, with a key that tells one file from another."""
    some().write(tmp_path / "one.json")
    replace(some(), model_name="yours").write(tmp_path / "other.json")
    one, other = (read_corrections(tmp_path / f"{name}.json") for name in ("one", "other"))
    assert one == some()
    assert len(one.key) == 16
    assert one.key != other.key
    assert one.configs == 2


def test_corrections_are_of_one_problem_and_device() -> None:
    """Another shape or device has none."""
    assert some().of(MM, H200) is not None
    assert some().of(replace(MM, k=1025), H200) is None
    assert some().of(replace(MM, tf32=True), H200) is None
    assert some().of(MM, replace(H200, multiprocessors=66)) is None


def edited(change: Any) -> str:
    """Return the file's text after ``change`` was done to its content."""
    plain = json.loads(some().to_json())
    change(plain)
    return json.dumps(plain)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"version": 1}',
        edited(lambda plain: plain["problems"][0].pop("sides")),
        edited(lambda plain: plain["problems"][0].update(others="much")),
        edited(lambda plain: plain["problems"][0].update(others=None)),
        edited(lambda plain: plain["problems"][0].update(others=1000)),
        edited(lambda plain: plain["problems"][0].update(others=10**400)),
        "[" * 100_000,
        edited(lambda plain: plain["problems"][0]["configs"][0].pop(2)),
        edited(lambda plain: plain["problems"][0]["problem"].update(colour="red")),
        edited(lambda plain: plain["problems"][0].update(device=["NVIDIA H200"])),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str) -> None:
    """What is no file of corrections is said to be none, in one line with the remedy."""
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(ModelError) as refused:
        read_corrections(path)
    assert str(refused.value).startswith(f"{path}: not a file of corrections (")
    assert str(refused.value).endswith("); make it again with `diode corrections`")


def test_a_missing_file_and_one_of_another_version(tmp_path: Path) -> None:
    """Both are named."""
    with pytest.raises(ModelError, match=r"gone\.json: cannot read the corrections \(No such file or directory\)"):
        read_corrections(tmp_path / "gone.json")
    (tmp_path / "new.json").write_text(edited(lambda plain: plain.update(version=2)))
    with pytest.raises(ModelError, match=r"new\.json: corrections of version 2, expected 1; make it again"):
        read_corrections(tmp_path / "new.json")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The place and the reason are said."""
    with pytest.raises(ModelError, match=r"none/c\.json: cannot write the corrections \(No such file or directory\)"):
        some().write(tmp_path / "none" / "c.json")
