"""Models that a new one is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from saved_models import CARD, DOMAIN, small_network
from synthetic import learnable

from diode_trainer import artifact
from diode_trainer.data.splits import Fold
from diode_trainer.judging.baselines.compare import compare, forecast
from diode_trainer.judging.baselines.rivals import label
from diode_trainer.judging.standing import standing
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from pathlib import Path

    from diode_trainer.artifact import TimingModel
    from diode_trainer.card import Domain

DATA = learnable(12)
ALL = (Fold(np.arange(0), np.arange(12)),)


def rival_of(path: Path, learned: int, domain: Domain = DOMAIN) -> TimingModel:
    """Return a model that learned from the first problems, saved and loaded again."""
    shapes = [example.shape for example in DATA.examples[:learned]]
    artifact.save(path / "other.pt", small_network(), replace(CARD, domain=domain), trained_on=shapes)
    return artifact.load(path / "other.pt")


@pytest.fixture
def own() -> list[Prediction]:
    """Return what a perfect model predicts."""
    return [Prediction.without_members(example.runtime_us) for example in DATA]


def test_a_rival_is_judged_by_what_it_has_not_learned_from(tmp_path: Path, own: list[Prediction]) -> None:
    """Where both were judged, both regrets are compared; where one was not, neither counts."""
    rival = rival_of(tmp_path, 5)
    found = standing(DATA, ALL, own, forecast(DATA, ALL, rivals=[rival]))
    rows = found.baselines.regrets[label(rival)]
    assert np.isnan(rows[:, 0]).tolist() == [True] * 5 + [False] * 7
    assert found.baselines.reports[label(rival)].problems == 7
    compared = found.compared([rival])
    expected = float(np.exp(np.log(rows[5:, 0]).mean()))
    assert compared == {
        rival.sha256: {"name": "other", "problems": 7, "regret_at_1": 1.0, "its_regret_at_1": pytest.approx(expected)}
    }
    assert expected > 1


def test_a_rival_of_another_device_has_learned_from_none(tmp_path: Path, own: list[Prediction]) -> None:
    """Then its problems were measured elsewhere; it is asked as if the device were its own."""
    elsewhere = replace(DOMAIN, hardware=(replace(DOMAIN.hardware[0], name="NVIDIA H100"),))
    rival = rival_of(tmp_path, 12, elsewhere)
    found = standing(DATA, ALL, own, forecast(DATA, ALL, rivals=[rival]))
    assert found.compared([rival])[rival.sha256]["problems"] == 12


def test_a_rival_that_cannot_be_judged_is_left_out(tmp_path: Path) -> None:
    """It has learned from all of them, or knows none; the reason is told, and nothing is compared."""
    learned = rival_of(tmp_path, 12)
    found = compare(DATA, ALL, forecast(DATA, ALL, rivals=[learned]))
    assert found.skipped[label(learned)] == "it was trained on 12 of these 12 problems"
    strange = rival_of(tmp_path, 3, replace(DOMAIN, ops=("bmm",)))
    found = compare(DATA, ALL, forecast(DATA, ALL, rivals=[strange]))
    assert found.skipped[label(strange)] == "it was trained on 3 of these 12 problems, and knows none of the others"
    assert label(strange) not in found.reports
