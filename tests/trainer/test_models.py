from __future__ import annotations

import numpy as np
import pytest
import torch
from synthetic import H200, MM, columns

from diode_store.errors import ModelError
from diode_trainer.features import CONFIG_FEATURES, GENERATED, PROBLEM_FEATURES, config_features, problem_features
from diode_trainer.models import (
    DeepMatmulTimingModel,
    MatmulTimingModel,
    TimingNetwork,
    dimensions_of,
    model_class,
)
from diode_trainer.scoring import Scorer

DIMENSIONS = (len(PROBLEM_FEATURES), len(CONFIG_FEATURES))
KINDS = pytest.mark.parametrize("kind", [MatmulTimingModel, DeepMatmulTimingModel])


def random_network(kind: type[TimingNetwork] = DeepMatmulTimingModel, **options: object) -> TimingNetwork:
    """Return a network with weights and a normalisation that are not the defaults."""
    network = kind(*DIMENSIONS, **options)
    generator = torch.Generator().manual_seed(1)
    network.initialise(generator)
    with torch.no_grad():
        for name, buffer in network.normalisation.named_buffers():
            buffer.copy_(torch.rand(buffer.shape, generator=generator) + (0.5 if "scale" in name else 0.0))
        network.normalisation.config_mean[: GENERATED + 1] = 0
        for parameter in (*network.biases, network.out_bias):
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    return network


@KINDS
def test_prediction_has_a_value_for_each_member_problem_and_config(kind: type[TimingNetwork]) -> None:
    """(b, P) and (r, C) give (E, r)."""
    network = kind(*DIMENSIONS)
    predicted = network(
        network.inputs(torch.zeros(2, DIMENSIONS[0]), torch.zeros(7, DIMENSIONS[1]), torch.arange(7) % 2)
    )
    assert predicted.shape == (network.members, 7)


def test_config_is_predicted_on_its_problem() -> None:
    """Among other problems, and in any order, a config gets the prediction that it gets alone."""
    network = random_network()
    problem, config = torch.randn(3, DIMENSIONS[0]), torch.randn(5, DIMENSIONS[1])
    problem_of = torch.tensor([2, 0, 0, 1, 2])
    together = network(network.inputs(problem, config, problem_of))
    one = torch.zeros(1, dtype=torch.int64)
    alone = [
        network(network.inputs(problem[p : p + 1], config[i : i + 1], one)) for i, p in enumerate(problem_of.tolist())
    ]
    torch.testing.assert_close(together, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)


def test_types() -> None:
    """The base model is one member, the deep one several."""
    assert (MatmulTimingModel(*DIMENSIONS).members, model_class("base")) == (1, MatmulTimingModel)
    assert DeepMatmulTimingModel(*DIMENSIONS).members > 1
    assert model_class("deep") is DeepMatmulTimingModel


@pytest.mark.parametrize("model_type", ["wide", "", None, ["deep"]])
def test_unknown_type_is_refused(model_type: object) -> None:
    """Another type is an error that lists the known ones."""
    with pytest.raises(ModelError, match="known types: base, deep"):
        model_class(model_type)  # type: ignore[arg-type]


def test_members_do_not_mix() -> None:
    """Changing one member's weights changes its predictions only."""
    network = random_network()
    inputs = torch.randn(3, sum(DIMENSIONS))
    before = network(inputs).detach()
    with torch.no_grad():
        network.weights[0][1] += 1.0
    changed = (network(inputs).detach() != before).any(1)
    assert changed.tolist() == [False, True, *([False] * (network.members - 2))]


def test_initialisation_follows_the_generator() -> None:
    """Equal generators draw equal weights; the global one is not asked."""
    networks = [MatmulTimingModel(*DIMENSIONS) for _ in range(2)]
    for network in networks:
        network.initialise(torch.Generator().manual_seed(3))
    torch.testing.assert_close(networks[0].config_weight, networks[1].config_weight, rtol=0, atol=0)


def test_normalisation_leaves_vendors_alone() -> None:
    """Only generated kernels' features are shifted; a vendor's row stays zero behind its flags."""
    network = random_network()
    config = torch.zeros(2, DIMENSIONS[1])
    config[0, 0] = 1.0
    config[1, GENERATED] = 1.0
    inputs = network.inputs(torch.zeros(1, DIMENSIONS[0]), config, torch.zeros(2, dtype=torch.int64))
    normalised = inputs[:, : DIMENSIONS[1]]
    assert not normalised[0, 1:].any()
    expected = -network.normalisation.config_mean / network.normalisation.config_scale
    torch.testing.assert_close(normalised[1, GENERATED + 1 :], expected[GENERATED + 1 :])


@KINDS
@pytest.mark.parametrize("widths", [(8,), (16, 8), (8, 16, 8)])
def test_state_dict_tells_the_dimensions(kind: type[TimingNetwork], widths: tuple[int, ...]) -> None:
    """A state dict is enough to build the network again."""
    network = kind(*DIMENSIONS, widths)
    assert dimensions_of(network.state_dict()) == (*DIMENSIONS, widths, network.members, ())


@pytest.mark.parametrize("state", [{}, {"problem_weight": torch.zeros(2)}, {"layer.weight": torch.zeros(2, 2)}])
def test_another_state_dict_is_refused(state: dict[str, torch.Tensor]) -> None:
    """What is not our state dict is said to be none."""
    with pytest.raises(ModelError, match="not the state dict of a diode model"):
        dimensions_of(state)


@KINDS
@pytest.mark.parametrize("widths", [(8,), (16, 8, 8)])
def test_scorer_predicts_what_the_network_does(kind: type[TimingNetwork], widths: tuple[int, ...]) -> None:
    """NumPy with the normalisation folded in gives the network's predictions, member by member."""
    network = random_network(kind, hidden_layer_widths=widths)
    problem, config = problem_features(MM, H200), config_features(MM, H200, columns())
    of_one = torch.zeros(len(config), dtype=torch.int64)
    inputs = network.inputs(torch.from_numpy(problem)[None], torch.from_numpy(config.copy()), of_one)
    expected = network(inputs).detach().numpy()
    np.testing.assert_allclose(Scorer(network)(problem, config), expected, rtol=2e-4, atol=2e-4)


def test_scorer_is_indifferent_to_the_batch() -> None:
    """A config gets the same prediction alone and among others."""
    scorer = Scorer(random_network())
    chosen = columns()
    together = scorer.predict_us(MM, H200, chosen)
    alone = [float(scorer.predict_us(MM, H200, chosen.take(np.array([i])))[0]) for i in range(len(chosen))]
    np.testing.assert_allclose(alone, together, rtol=1e-5)


def test_scorer_follows_the_order_of_the_configs() -> None:
    """Permuting the configs permutes the predictions."""
    scorer = Scorer(random_network())
    chosen = columns()
    order = np.random.default_rng(0).permutation(len(chosen))
    np.testing.assert_allclose(
        scorer.predict_us(MM, H200, chosen.take(order)), scorer.predict_us(MM, H200, chosen)[order], rtol=1e-5
    )


def test_scorer_does_not_change_what_it_is_given() -> None:
    """The caller's features stay as they are."""
    problem, config = problem_features(MM, H200), config_features(MM, H200, columns())
    kept = problem.copy(), config.copy()
    Scorer(random_network())(problem, config)
    np.testing.assert_array_equal(problem, kept[0])
    np.testing.assert_array_equal(config, kept[1])


def test_impossible_configs_are_infinite() -> None:
    """What does not fit shared memory, and a template that was never learned, is predicted inf."""
    rows = (
        ("triton::mm", 256, 256, 128, 8, 5, 8, False),
        ("triton::mm", 64, 64, 32, 8, 3, 4, False),
        ("cpp::X",) + (0,) * 6 + (False,),
    )
    scorer = Scorer(random_network(), ("triton::mm",))
    assert np.isfinite(scorer.predict_us(MM, H200, columns(*rows))).tolist() == [False, True, False]


def test_predictions_scale_with_the_roofline() -> None:
    """A network that predicts 0 everywhere predicts the roofline."""
    network = MatmulTimingModel(*DIMENSIONS, (4,))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    from diode_trainer.features import roofline_us

    predicted = Scorer(network).predict_us(MM, H200, columns())
    np.testing.assert_allclose(predicted, roofline_us(MM, H200))
