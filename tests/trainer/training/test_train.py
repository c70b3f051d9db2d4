from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from synthetic import QUICK, learnable

from diode_store.errors import DatasetError, ModelError, SettingsError
from diode_trainer.commands.recipes import RECIPES, make_recipe
from diode_trainer.data.dataset import Examples, ExampleSet
from diode_trainer.data.tensors import normalise, pack
from diode_trainer.features import CONFIG_FEATURES, GENERATED, PROBLEM_FEATURES, roofline_us
from diode_trainer.models import MatmulTimingModel, TimingNetwork
from diode_trainer.training.batches import Batch, ConfigLists
from diode_trainer.training.losses import Goals, expected_regret, loss_of
from diode_trainer.training.train import (
    EpochReport,
    _parts,
    _schedule,
    fit,
    limited_threads,
    predict,
)

# --- packing


def test_packed_problems_lie_behind_one_another() -> None:
    """Each problem has as many rows as configs that ran; failures have none."""
    one, other = learnable(2).examples
    short = replace(
        other,
        columns=other.columns.take(np.arange(5)),
        runtime_us=np.array([4.0, 5.0, math.inf, 7.0, 8.0]),
        is_vendor=other.is_vendor[:5],
        is_estimate=np.array([False, False, False, True, False]),
    )
    packed = pack(ExampleSet((one, short)))
    width = len(one)
    assert packed.problem.shape == (2, len(PROBLEM_FEATURES))
    assert packed.count.tolist() == [width, 4]
    assert packed.config.shape == (width + 4, len(CONFIG_FEATURES))
    assert packed.problem_of.tolist() == [0] * width + [1] * 4
    assert packed.estimate[width:].nonzero().flatten().tolist() == [2]
    assert packed.vendor.nonzero().flatten().tolist() == [0, width]
    roofline = roofline_us(short.shape, short.hardware)
    expected = torch.tensor([4.0, 5.0, 7.0, 8.0]).div(roofline).log()
    torch.testing.assert_close(packed.target[width:], expected)


def test_packed_problems_can_be_taken() -> None:
    """Problems taken in another order bring their configs along, one without any config too."""
    found = list(learnable(4).examples)
    found[1] = replace(found[1], runtime_us=np.full(len(found[1]), math.inf))
    found[2] = replace(found[2], columns=found[2].columns.take(np.arange(3)), **first_rows(found[2], 3))
    order = [3, 1, 2]
    taken, expected = (
        pack(ExampleSet(tuple(found)))[torch.tensor(order)],
        pack(ExampleSet(tuple(found[i] for i in order))),
    )
    for name, value in vars(expected).items():
        torch.testing.assert_close(getattr(taken, name), value, rtol=0, atol=0)
    assert taken.count.tolist()[1:] == [0, 3]


def first_rows(example: Examples, count: int) -> dict[str, Any]:
    """Return the first ``count`` of each array of a problem."""
    return {name: getattr(example, name)[:count] for name in ("runtime_us", "is_vendor", "is_estimate")}


def test_target_is_log_of_runtime_over_roofline() -> None:
    """The vendor of the synthetic problems takes four rooflines, give or take the noise."""
    packed = pack(learnable(8))
    torch.testing.assert_close(packed.target[packed.vendor], torch.full((8,), math.log(4)), atol=0.05, rtol=0)


def test_normalised_features_have_mean_0_and_scale_1() -> None:
    """Over the training set; a feature that never varies gets no weight, vendors' flags stay flags."""
    packed = pack(learnable(24))
    network = MatmulTimingModel(len(PROBLEM_FEATURES), len(CONFIG_FEATURES))
    normalise(network, packed)
    inputs = network.inputs(packed.problem, packed.config, packed.problem_of)
    config, problem = inputs.split((len(CONFIG_FEATURES), len(PROBLEM_FEATURES)), 1)
    problem = problem[packed.count.cumsum(0) - 1]  # once for each problem
    varies = packed.problem.std(0, unbiased=False) > 1e-5
    torch.testing.assert_close(problem.mean(0), torch.zeros(len(PROBLEM_FEATURES)), atol=1e-4, rtol=0)
    torch.testing.assert_close(problem.std(0, unbiased=False)[varies], torch.ones(int(varies.sum())), atol=1e-3, rtol=0)
    constant = PROBLEM_FEATURES.index("is_bf16")
    assert not network.problem_weight[:, constant].any()
    assert not network.config_weight[:, CONFIG_FEATURES.index("log_group_m")].any()
    generated = config[~packed.vendor]
    assert generated[:, GENERATED].unique().tolist() == [1.0]
    assert network.config_weight[:, : GENERATED + 1].any()


# --- fitting


def test_equal_seeds_give_equal_models() -> None:
    """Two fits with one seed have the same weights to the last bit; another seed has others."""
    packed = pack(learnable(16))
    one, same, other = (fit(packed, QUICK, seed=seed).network.state_dict() for seed in (7, 7, 8))
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_fit_leaves_the_callers_random_state_alone() -> None:
    """Whoever trains a model goes on with the numbers they would have drawn."""
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    fit(pack(learnable(12)), replace(QUICK, epochs=1))
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_fit_learns() -> None:
    """A short fit predicts unseen problems of a learnable kind far better than their spread."""
    dataset = learnable(80, seed=1)
    packed, unseen = pack(dataset), pack(learnable(20, seed=2))
    fitted = fit(packed, replace(QUICK, epochs=40), seed=0)
    error = (predict(fitted.network, unseen) - unseen.target)[~unseen.estimate]
    spread = unseen.target[~unseen.estimate].std().item()
    assert error.square().mean().sqrt().item() < 0.35 * spread


def test_every_epoch_is_reported() -> None:
    """The callback hears of each epoch, the losses fall, and the history holds the same."""
    heard: list[EpochReport] = []
    fitted = fit(pack(learnable(20)), QUICK, seed=0, on_epoch=heard.append)
    assert [progress.epoch for progress in heard] == list(range(1, 11))
    assert tuple(heard) == fitted.history
    assert heard[-1].training_loss < heard[0].training_loss
    assert [p.epoch for p in heard if p.validation_loss is not None] == [5, 10]


def test_the_best_epoch_of_each_member_is_kept() -> None:
    """Of all validated epochs, each member's with the least loss on its held-out problems is what a fit returns."""
    fitted = fit(pack(learnable(24)), replace(QUICK, epochs=30, learning_rate=0.05), seed=1)
    validated = {p.epoch: p.member_validation_losses for p in fitted.history if p.member_validation_losses is not None}
    least = [min(losses) for losses in zip(*validated.values(), strict=True)]
    assert fitted.validation_loss == pytest.approx(sum(least) / 2)
    assert fitted.epochs in [epoch for epoch, losses in validated.items() if set(losses) & set(least)]


def test_members_learn_the_same_alone() -> None:
    """Members that are fitted apart, and joined, have the weights and losses that they have in one fit."""
    packed, recipe = pack(learnable(24)), replace(QUICK, members=3, epochs=20, patience=5)
    together = fit(packed, recipe, seed=1)
    apart = [fit(packed, recipe, seed=1, members=part) for part in (slice(0, 2), slice(2, 3))]
    joined = TimingNetwork.joined([part.network for part in apart]).state_dict()
    for name, value in together.network.state_dict().items():
        torch.testing.assert_close(joined[name], value)
    losses = [part.history[0].member_training_losses for part in apart]
    assert (*losses[0], *losses[1]) == pytest.approx(together.history[0].member_training_losses)


def test_an_epoch_has_some_configs_of_a_long_list() -> None:
    """At most so many, always the fastest and the vendor's, the others drawn anew; of a short list all."""
    packed = pack(learnable(3))
    lists, width = ConfigLists(packed, 14), int(packed.count.max())
    assert width == 15
    generator = torch.Generator().manual_seed(0)
    tables = [lists.draw(generator) for _ in range(40)]
    for table in tables:
        assert table.shape == (3, 14)
        for problem in range(3):
            rows = table[problem]
            assert len(rows.unique()) == 14
            assert set((packed.problem_of[rows]).tolist()) == {problem}
            assert packed.vendor[rows].any()
            fastest = packed.target[packed.problem_of == problem].sort().values[:12]
            assert torch.isin(fastest, packed.target[rows]).all()
    assert len({tuple(sorted(table[0].tolist())) for table in tables}) > 1
    whole = ConfigLists(packed, 99).draw(generator)
    assert whole.shape == (3, width)
    assert sorted(whole.flatten().tolist()) == list(range(3 * width))


def test_fit_stops_early() -> None:
    """With patience, a fit that gets no better ends before its last epoch."""
    packed = pack(learnable(12))
    recipe = replace(QUICK, epochs=400, patience=10, learning_rate=0.1, hidden_layer_widths=(8,))
    fitted = fit(packed, recipe, seed=0)
    assert len(fitted.history) < 400
    assert len(fitted.history) - fitted.epochs >= 10


def test_a_fit_waits_for_its_first_validation() -> None:
    """However little patience there is, a fit does not end before anything was validated."""
    fitted = fit(pack(learnable(12)), replace(QUICK, patience=2))
    assert fitted.epochs >= 5
    assert math.isfinite(fitted.validation_loss)


def test_the_loss_counts_the_regret_of_two_picks() -> None:
    """The expected regret of a pick of all configs is in the loss, and that of one of Triton's."""
    packed = pack(learnable(12))
    network = fit(packed, replace(QUICK, epochs=2)).network
    table = ConfigLists(packed, 99).draw(torch.Generator().manual_seed(0))
    goals, batch = Goals.of_table(packed, table, QUICK), Batch.of_table(table)
    with torch.inference_mode():
        inputs = network.inputs(packed.problem, packed.config, packed.problem_of)
        predicted = batch.rectangle(network(inputs[batch.rows]))
        without, with_regret = (loss_of(predicted, goals, replace(QUICK, regret_weight=w)) for w in (0.0, 2.0))
        of_all, of_triton = (expected_regret(predicted, goal, QUICK.regret_temperature) for goal in goals.rankings)
    assert not torch.equal(of_all, of_triton)
    torch.testing.assert_close(with_regret - without, 2 * (of_all + of_triton))


def test_the_losses_of_members_are_reported() -> None:
    """Each member has its own curves; the training loss is their mean."""
    history = fit(pack(learnable(20)), replace(QUICK, epochs=5)).history
    assert [len(report.member_training_losses) for report in history] == [2] * 5
    for report in history:
        assert sum(report.member_training_losses) / 2 == pytest.approx(report.training_loss)
    assert [len(report.member_validation_losses or ()) for report in history] == [0, 0, 0, 0, 2]
    low, high = sorted(history[-1].member_validation_losses or ())
    assert low < (history[-1].validation_loss or 0) < high


def test_members_hold_out_different_problems() -> None:
    """Each member is judged by a part that it alone does not learn from."""
    learns = _parts(100, 4, torch.Generator().manual_seed(0))
    assert learns.shape == (4, 100)
    assert (~learns).sum(1).tolist() == [10, 10, 10, 10]
    assert int((~learns).sum(0).max()) == 1


def test_learning_rate_warms_up_and_cools_down() -> None:
    """It rises over the first tenth and ends near nothing."""
    values = [_schedule(step / 100) for step in range(101)]
    assert max(values) == pytest.approx(1.0, abs=0.01)
    assert values.index(max(values)) == 10
    assert values[0] < 0.01
    assert values[-1] < 0.01
    assert all(b > a for a, b in pairwise(values[:11]))
    assert all(b < a for a, b in pairwise(values[10:]))


def test_network_comes_back_ready_to_predict() -> None:
    """A fitted network is on the CPU, needs no gradient and is in evaluation mode."""
    network = fit(pack(learnable(12)), replace(QUICK, epochs=1)).network
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_too_few_problems() -> None:
    """Nothing is learned from a handful of problems; the remedy is named."""
    with pytest.raises(DatasetError, match=r"3 problems are too few to learn from, 10 needed; .*--bundled"):
        fit(pack(learnable(3)), QUICK)


def test_problems_without_triton_choices_are_no_obstacle() -> None:
    """A problem that only the vendor solved trains the vendor's prediction and nothing else."""
    found = learnable(12).examples
    lonely = replace(found[0], runtime_us=np.where(found[0].is_vendor, found[0].runtime_us, np.inf))
    fitted = fit(pack(ExampleSet((lonely, *found[1:]))), replace(QUICK, epochs=2))
    assert math.isfinite(fitted.history[-1].training_loss)


def fail_with_one_thread() -> None:
    """Fail while operations have one thread."""
    with limited_threads():
        assert torch.get_num_threads() == 1
        raise KeyError


def test_limited_threads_restores() -> None:
    """The number of threads is what it was, also after an error."""
    before = torch.get_num_threads()
    with pytest.raises(KeyError):
        fail_with_one_thread()
    assert torch.get_num_threads() == before


# --- recipes


def test_recipes_differ_by_model_type() -> None:
    """Each model type has its own recipe; options replace single fields."""
    assert make_recipe("deep") == RECIPES["deep"]
    changed = make_recipe("base", epochs=3, weight_decay=0.0, patience=None)
    assert (changed.epochs, changed.weight_decay, changed.patience) == (3, 0.0, RECIPES["base"].patience)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"hidden_dim": 32}, (32, 32, 32)),
        ({"num_layers": 2}, (96, 96)),
        ({"hidden_dim": 16, "num_layers": 1}, (16,)),
        ({}, None),
    ],
)
def test_hidden_layers(options: dict[str, int], expected: tuple[int, ...] | None) -> None:
    """Width and number of layers are set apart."""
    assert make_recipe("base", **options).hidden_layer_widths == expected


def test_members() -> None:
    """A deep model has as many as are asked for."""
    network = fit(pack(learnable(24)), make_recipe("deep", hidden_dim=8, epochs=1, members=3)).network
    assert (network.members, make_recipe("base", members=1).members) == (3, 1)


def test_bad_recipes() -> None:
    """An unknown type, rates that no fit survives, and several members of one network, are refused."""
    with pytest.raises(ModelError, match="unknown model type 'huge'"):
        make_recipe("huge")
    for rate in (0.0, math.nan, math.inf, 1e6):
        with pytest.raises(SettingsError, match=f"--learning-rate must be over 0 and at most 1, not {rate}"):
            make_recipe("deep", learning_rate=rate)
    for decay in (-1.0, math.nan, math.inf):
        with pytest.raises(SettingsError, match=f"--weight-decay must be from 0 to 100, not {decay}"):
            make_recipe("deep", weight_decay=decay)
    with pytest.raises(SettingsError, match="--members 2: base is a single network; give --model-type deep"):
        make_recipe("base", members=2)


def test_a_fit_that_diverges() -> None:
    """Weights that grow without end are an error with its remedy, not a model."""
    recipe = replace(QUICK, learning_rate=1e30)
    with pytest.raises(ModelError, match="the fit diverged in epoch 1; lower --learning-rate"):
        fit(pack(learnable(24)), recipe)
