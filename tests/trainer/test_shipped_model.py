"""The models that ship are whole, and as good as is promised of them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import H200, LONG, MM

from diode_collectors.spool.reading import measurements_in
from diode_store.records import ProblemShape
from diode_store.system.resources import bundled_data_dir, trained_models_dir
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Card, read_card
from diode_trainer.data.from_file import load_measurements
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.judging.verify import verify
from diode_trainer.training.history import SUFFIX as HISTORY_SUFFIX

CHECKPOINTS = sorted((trained_models_dir() / MATMUL_PURPOSE).glob("*.pt"))
PROBLEMS, JUDGED = 13_004, 12_947
"""Problems of the bundled measurements; one counts again by device and regime. The others have one choice that runs."""
DATA = Path(__file__).parents[2] / "benchmarks/data"
HELD_BACK = sorted(DATA.glob("*-held-back-*.seg"))
ON_H100 = DATA / "h100-2026-11-judged-0000.seg"
BARS = [
    ("all_choices", "1", 1.031),
    ("all_choices", "5", 1.004),
    ("triton_only", "1", 1.036),
    ("triton_only", "5", 1.004),
]


@pytest.fixture(params=CHECKPOINTS, ids=lambda path: path.stem)
def checkpoint(request: pytest.FixtureRequest) -> Path:
    """Return a shipped model's checkpoint."""
    path: Path = request.param
    return path


@pytest.fixture
def card(checkpoint: Path) -> Card:
    """Return its card."""
    return read_card(checkpoint.with_suffix(".json"))


def regret(judged: Any, choices: str, at: str, ranking: str | None = None) -> float:
    """Return the geometric mean of a model's regret, or a baseline's."""
    of = judged[choices] if ranking is None else judged[choices][ranking]
    return float(of["regret"][at]["geomean"])


def test_a_model_ships() -> None:
    """There is the model that the documentation names, and no card without its checkpoint."""
    assert "v4_model" in [path.stem for path in CHECKPOINTS]
    cards = sorted(path for path in trained_models_dir().rglob("*.json") if not path.name.endswith(HISTORY_SUFFIX))
    assert [path.with_suffix(".pt") for path in cards] == sorted(trained_models_dir().rglob("*.pt"))


def test_shipped_bytes_are_the_cards(checkpoint: Path, card: Card) -> None:
    """The checkpoint is the one that the card describes, and works."""
    assert hashlib.sha256(checkpoint.read_bytes()).hexdigest() == card.sha256
    assert verify(checkpoint) is None


def test_shipped_model_was_judged_on_all_problems(card: Card) -> None:
    """The figures are of 5 folds over all it was trained on, for the model and for what it is compared with."""
    assert card.metrics["folds"] == 5
    judged = [card.metrics["all_choices"], card.metrics["triton_only"], card.baselines["all_choices"]["vendor_only"]]
    assert [card.data["problems"], *(figures["problems"] for figures in judged)] == [PROBLEMS, *[JUDGED] * 3]


def test_shipped_model_claims_what_it_learned(card: Card) -> None:
    """It knows both devices, every op and dtype that was measured, and how sure it is."""
    assert [device.name for device in card.hardware] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert len(card.domain.device_checks) == 2
    assert card.ops == ("addmm", "baddbmm", "bmm", "grouped_mm", "int_mm", "mm", "mm_plus_mm", "scaled_mm")
    assert card.dtypes == ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "tf32")
    for op, own in card.domain.of_ops.items():
        assert [device.name for device in own.hardware] == ["NVIDIA H200"], op
    assert card.domain.layouts == ("nn", "nt", "tn")
    assert card.calibration is not None


@pytest.mark.parametrize(
    ("op", "bar"), [("scaled_mm", 1.04), ("grouped_mm", 1.02), ("int_mm", 1.01), ("mm_plus_mm", 1.01)]
)
def test_shipped_model_ranks_the_other_ops(checkpoint: Path, op: str, bar: float) -> None:
    """Its first pick is near the best, even among the problems that it learned from."""
    (data,) = bundled_data_dir().glob("*-low-precision-0000.seg")
    found = load_measurements([m for m in measurements_in(data) if m.problem.op == op], op)
    judged = summarise(judge_problems(found.examples, predict(artifact.load(checkpoint), found.examples), vendor=True))
    assert judged.problems > 400
    assert 1 <= judged.regret[1].geomean <= bar


def test_shipped_model_never_learned_from_what_is_held_back(checkpoint: Path) -> None:
    """The problems that it is judged by in the end are in none of what it was trained on."""
    model = artifact.load(checkpoint)
    shapes = [measurement.problem.shape for path in HELD_BACK for measurement in measurements_in(path)]
    assert len(shapes) == 203 + 252
    assert not any(model.was_trained_on(shape) for shape in shapes)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("vendor", "bars"), [(True, (1.012, 1.002)), (False, (1.015, 1.003))])
def test_shipped_model_knows_families_that_it_has_not_seen(
    checkpoint: Path, *, vendor: bool, bars: tuple[float, float]
) -> None:
    """On the layers of 26 models that are held back its first pick, and the best of five, are as good as promised."""
    timed = [measurement for path in HELD_BACK for measurement in measurements_in(path)]
    found = load_measurements(timed, "what is held back")
    layers = [example for example in found if not (example.family or "").startswith("drawn")]
    assert len({example.family for example in layers}) == 26
    judged = summarise(judge_problems(layers, predict(artifact.load(checkpoint), layers), vendor=vendor))
    assert judged.problems == 356
    for at, bar in zip((1, 5), bars, strict=True):
        assert 1 <= judged.regret[at].geomean <= bar


@pytest.mark.parametrize(("choices", "at", "bar"), BARS)
def test_shipped_model_is_good_enough(card: Card, choices: str, at: str, bar: float) -> None:
    """Its first pick, and the best of its first five, are close to the fastest config."""
    assert 1 <= regret(card.metrics, choices, at) <= bar


@pytest.mark.parametrize("at", ["1", "5"])
def test_shipped_model_beats_what_needs_no_model(card: Card, at: str) -> None:
    """It loses less time than always taking the vendor's kernel, and than a fixed order of configs."""
    ours = regret(card.metrics, "all_choices", at)
    assert ours < regret(card.baselines, "all_choices", at, "vendor_only")
    assert ours < regret(card.baselines, "all_choices", at, "fold_ranking")
    assert regret(card.metrics, "triton_only", at) < regret(card.baselines, "triton_only", at, "fold_ranking")


@pytest.mark.parametrize(("drawn", "bars"), [(False, (1.012, 1.001)), (True, (1.030, 1.003))])
def test_shipped_model_knows_an_h100(checkpoint: Path, *, drawn: bool, bars: tuple[float, float]) -> None:
    """On the held-back problems as an H100 timed them, families and drawn, it is as good as promised."""
    held_back = {measurement.problem.shape for path in HELD_BACK for measurement in measurements_in(path)}
    timed = [m for m in measurements_in(ON_H100) if m.problem.shape in held_back]
    found = [e for e in load_measurements(timed, "H100") if (e.family or "").startswith("drawn") == drawn]
    judged = summarise(judge_problems(found, predict(artifact.load(checkpoint), found), vendor=True))
    assert judged.problems == (99 if drawn else 354)
    for at, bar in zip((1, 5), bars, strict=True):
        assert 1 <= judged.regret[at].geomean <= bar


@pytest.mark.parametrize(
    "shape",
    [
        MM,
        ProblemShape("mm", "bfloat16", 1, 16, 4096, 4096, "nt"),
        ProblemShape("addmm", "float16", 1, 333, 768, 3072, "nn"),
        ProblemShape("mm", "float32", 1, 2048, 512, 4096, "nn", tf32=True),
    ],
    ids=lambda shape: f"{shape.op}-{shape.m}x{shape.n}x{shape.k}-{shape.arithmetic}",
)
def test_shipped_model_ranks_the_same_five_first_in_a_long_list(checkpoint: Path, shape: ProblemShape) -> None:
    """That all members score only the best of a long list changes none of the first five choices."""
    model, chosen = artifact.load(checkpoint), replace(LONG, allow_tf32=np.full(len(LONG), shape.tf32))
    fast, exact = (model.predict_us(shape, H200, chosen, exact=exact) for exact in (False, True))
    first = [np.argsort(times, kind="stable")[:5].tolist() for times in (fast, exact)]
    assert first[0] == first[1]
