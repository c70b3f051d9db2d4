"""The small network that says which configs the members of a model should score."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from synthetic import H200, LONG, MM, learnable

from diode_store.errors import ModelError
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Card
from diode_trainer.data.tensors import pack
from diode_trainer.features import FEATURE_VERSION
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.judging.verify import verify
from diode_trainer.models import dimensions_of
from diode_trainer.scoring import Scorer
from diode_trainer.training import scout
from diode_trainer.training.recipe import Recipe
from diode_trainer.training.scout import teach_scout
from diode_trainer.training.train import EpochReport, fit, predict

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


def test_what_diverges_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the options of the fit would mend it, so another seed is the remedy."""
    packed = pack(DATA)
    found = fit(packed, replace(RECIPE, epochs=1)).network
    monkeypatch.setattr(scout, "RECIPE", replace(scout.RECIPE, learning_rate=1e30))
    with pytest.raises(ModelError, match=r"the scout, .* diverged; give another --seed"):
        scout.teach_scout(found, packed, seed=1)


def test_a_broken_one_is_found(network: TimingNetwork, tmp_path: Path) -> None:
    """A scout is asked of long lists alone, so verifying asks for one."""
    broken = copy.deepcopy(network)
    assert broken.scout is not None
    with torch.no_grad():
        broken.scout.out_weight.fill_(3e38)
    artifact.save(
        tmp_path / "broken.pt", broken, Card("broken", MATMUL_PURPOSE, "deep", FEATURE_VERSION, DATA.domain())
    )
    assert "predicts" in str(verify(tmp_path / "broken.pt"))


def test_missing_tensor_is_named(network: TimingNetwork) -> None:
    """By its whole name, since the members have one of the same."""
    state = dict(network.state_dict())
    del state["scout.out_weight"]
    with pytest.raises(ModelError, match=r"'scout\.out_weight' is missing"):
        dimensions_of(state)


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
    assert [report.epoch for report in heard] == list(range(1, scout.RECIPE.epochs + 1))


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
