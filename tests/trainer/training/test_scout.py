"""The small network that says which configs the members of a model should score."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from synthetic import H200, LONG, MM, learnable

from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Card
from diode_trainer.data.tensors import pack
from diode_trainer.features import FEATURE_VERSION
from diode_trainer.scoring import Scorer
from diode_trainer.training.scout import teach_scout
from diode_trainer.training.train import EpochReport, Recipe, fit, predict
from diode_trainer.workflow import fit_and_judge

if TYPE_CHECKING:
    from pathlib import Path

    from diode_trainer.models import TimingNetwork

RECIPE = Recipe("deep", (16, 16), members=2, epochs=10, patience=0)
DATA = learnable(40)


@pytest.fixture(scope="module")
def network() -> TimingNetwork:
    """Return a fitted network of two members with its scout."""
    packed = pack(DATA)
    found = fit(packed, RECIPE).network
    teach_scout(found, packed, seed=1)
    return found


def test_it_predicts_what_the_members_do(network: TimingNetwork) -> None:
    """It was never told a measured time, and yet follows the mean of the members closely."""
    packed = pack(DATA)
    assert network.scout is not None
    taught, members = predict(network.scout, packed), predict(network, packed)
    assert float(torch.corrcoef(torch.stack((taught, members)))[0, 1]) > 0.95


def test_measured_times_do_not_matter_to_it(network: TimingNetwork) -> None:
    """Only the features are used, and of the network only what it predicts; the same seed gives the same scout."""
    packed = pack(DATA)
    other = fit(packed, RECIPE).network
    teach_scout(other, replace(packed, target=torch.zeros_like(packed.target)), seed=1)
    assert network.scout is not None
    assert other.scout is not None
    for ours, theirs in zip(network.scout.parameters(), other.scout.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_one_member_gets_none() -> None:
    """A single network is as quick by itself."""
    packed = pack(DATA)
    alone = fit(packed, replace(RECIPE, members=1)).network
    teach_scout(alone, packed, seed=1)
    assert alone.scout is None


def test_it_is_heard_of_after_each_epoch() -> None:
    """So that a fit can be stopped while the scout learns."""
    packed = pack(DATA)
    heard: list[EpochReport] = []
    teach_scout(fit(packed, replace(RECIPE, epochs=1)).network, packed, seed=1, on_epoch=heard.append)
    assert [report.epoch for report in heard] == list(range(1, 21))


def test_it_is_saved_with_the_model(network: TimingNetwork, tmp_path: Path) -> None:
    """A model from disk scores a long list as the one that was saved."""
    card = Card("scouted", MATMUL_PURPOSE, "deep", FEATURE_VERSION, DATA.domain())
    artifact.save(tmp_path / "scouted.pt", network, card)
    loaded = artifact.load(tmp_path / "scouted.pt")
    here, there = (scorer.predict(MM, H200, LONG) for scorer in (Scorer(network), loaded.scorer))  # type: ignore[union-attr]
    assert loaded.network.scout is not None  # type: ignore[union-attr]
    assert len(there.finalists) < len(LONG)
    np.testing.assert_array_equal(here.runtime_us, there.runtime_us)


def test_the_model_that_is_kept_has_one_and_those_of_folds_have_none() -> None:
    """Folds are judged by what all members say of all configs."""
    result = fit_and_judge(DATA, RECIPE, 2)
    assert result.evaluation is not None
    assert result.fit.network.scout is not None
    assert [fold.network.scout for fold in result.evaluation.fits] == [None, None]
