"""A model of version 3 is read on: its predictions stay the same to the last bit, and it abstains for newer ops."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from saved_models import CARD, DOMAIN, torch_bytes
from synthetic import H200, LONG, MM, columns
from synthetic_ops import NEW_OPS, shape_of

from diode_store.errors import ModelError
from diode_store.system.resources import trained_models_dir
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.features import CONFIG_FEATURES, PROBLEM_FEATURES, WIDENED_DIMENSIONS, WIDENED_VERSION, model_inputs
from diode_trainer.models import DeepMatmulTimingModel, TimingNetwork
from diode_trainer.widening import OLD_OPS

if TYPE_CHECKING:
    from pathlib import Path

OLD_CARD = replace(CARD, feature_version=WIDENED_VERSION)


def old_network() -> TimingNetwork:
    """Return a network of version 3 with a scout."""
    network = DeepMatmulTimingModel(*WIDENED_DIMENSIONS, (8, 4), 3, (5,))
    generator = torch.Generator().manual_seed(2)
    network.initialise(generator)
    assert network.scout is not None
    network.scout.initialise(generator)
    with torch.no_grad():
        network.normalisation.config_mean[5:] = 0.5
        network.normalisation.problem_scale[:] = 2.0
    return network


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a checkpoint of version 3."""
    path = tmp_path / "old.pt"
    artifact.save(path, old_network(), OLD_CARD, trained_on=[MM])
    return path


def test_new_weights_are_zero(old: Path) -> None:
    """Members and scout have the dimensions of today, and no use for the new features."""
    model, before = artifact.load(old), old_network()
    network = model.network
    assert isinstance(network, TimingNetwork)
    assert (network.problem_feature_dim, network.config_feature_dim) == (len(PROBLEM_FEATURES), len(CONFIG_FEATURES))
    for now, then in ((network, before), (network.scout, before.scout)):
        assert isinstance(now, TimingNetwork)
        assert isinstance(then, TimingNetwork)
        problem, config = WIDENED_DIMENSIONS
        assert torch.equal(now.problem_weight[:, :problem], then.problem_weight)
        assert torch.equal(now.config_weight[:, :config], then.config_weight)
        assert not now.problem_weight[:, problem:].any()
        assert not now.config_weight[:, config:].any()
        assert torch.equal(now.normalisation.problem_scale[problem:], torch.ones(len(PROBLEM_FEATURES) - problem))


def test_predictions_stay_the_same(old: Path) -> None:
    """The network says the same of today's features as the one of version 3 of its own: no difference at all."""
    network, before = artifact.load(old).network, old_network()
    assert isinstance(network, TimingNetwork)
    inputs = model_inputs(MM, H200, columns())
    problem, config = torch.from_numpy(inputs.problem)[None], torch.from_numpy(inputs.config().T.copy())
    of = torch.zeros(len(config), dtype=torch.int64)
    first, second = WIDENED_DIMENSIONS
    with torch.no_grad():
        now = network(network.inputs(problem, config, of))
        then = before(before.inputs(problem[:, :first], config[:, :second], of))
    np.testing.assert_allclose(now, then, rtol=1e-6)


def test_it_abstains_for_newer_ops(old: Path) -> None:
    """Its domain knows none of them, and the card's version is the one that it was trained with."""
    card = artifact.load(old).card
    assert card.feature_version == WIDENED_VERSION
    for op in NEW_OPS:
        misses = [*card.domain.misses(shape_of(op, 64, 64, 64), H200)]
        assert misses[0].detail == f"the model knows mm, not {op}"
    assert not [*card.domain.misses(replace(MM, m=64, n=64, k=64), H200)]


def test_a_bare_state_dict_of_version_3_knows_the_old_ops(tmp_path: Path) -> None:
    """It has neither a version nor a domain: its dimensions tell."""
    path = tmp_path / "bare.pt"
    path.write_bytes(torch_bytes(old_network().state_dict()))
    card = artifact.load(path).card
    assert (card.feature_version, card.domain.ops) == (WIDENED_VERSION, OLD_OPS)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    """Only version 3 can be widened."""
    path = tmp_path / "older.pt"
    artifact.save(path, old_network(), replace(CARD, feature_version=2, domain=DOMAIN))
    with pytest.raises(ModelError, match="expected feature version 4, got a model made for version 2"):
        artifact.load(path)


def test_the_shipped_model_is_read_on() -> None:
    """A shipped model of version 3 still scores long and short lists."""
    for path in (trained_models_dir() / MATMUL_PURPOSE).glob("*.pt"):
        predicted = artifact.load(path).predict_us(MM, H200, LONG)
        assert np.isfinite(predicted).any()
