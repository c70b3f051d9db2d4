"""Beginning with a model of another device: it keeps what is known, and few problems are enough."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from synthetic import QUICK, learnable, measurement_of

from diode_store.devices.known import known_device
from diode_store.errors import ModelError
from diode_store.exchange import jsonl
from diode_store.records import Hardware
from diode_store.system import resources
from diode_trainer import artifact, catalogue
from diode_trainer.card import read_card
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.tensors import pack
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Scorer
from diode_trainer.training import warm_start
from diode_trainer.training.checkpoints import unfinished
from diode_trainer.training.train import Beginning, fit
from diode_trainer.training.warm_start import repeats

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand
    from diode_trainer.models import TimingNetwork

H20 = known_device("NVIDIA H20") or Hardware("nvidia", "NVIDIA H20", "sm_90", 78)
CPU = Hardware("cpu", "AMD EPYC", "x86_64-avx512", 2)


def on_h20(problems: int, seed: int) -> ExampleSet:
    """Return problems as if they had been timed on an H20."""
    found = learnable(problems, seed)
    return ExampleSet(tuple(replace(example, hardware=H20) for example in found), found.lineage)


def error(network: TimingNetwork, unseen: ExampleSet) -> float:
    """Return how far predicted times are off, as the root mean square of their logarithms."""
    errors = summarise(judge_problems(unseen.examples, predict(Scorer(network), unseen.examples))).errors
    assert errors is not None
    return errors.rmse_log


@pytest.fixture
def really_shipped(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the models that ship be found; return the name of the first."""
    monkeypatch.setattr(catalogue, "trained_models_dir", resources.trained_models_dir)
    monkeypatch.setattr(warm_start, "_MOST_KNOWN", 20)
    return catalogue.shipped_models()[0].path.stem


@pytest.mark.parametrize(
    ("new", "known", "expected"), [(10, 1000, 10), (100, 1000, 4), (1000, 1000, 1), (5000, 1000, 1), (10, 0, 1)]
)
def test_new_problems_are_repeated(new: int, known: int, expected: int) -> None:
    """They are three tenths of an epoch, if ten times each is enough for that; known ones come once."""
    assert repeats(new, known).tolist() == [expected] * new + [1] * known


def test_a_fit_begins_with_the_weights_of_another() -> None:
    """A learning rate of next to nothing leaves them as they are, normalisation included; the other stays too."""
    base = fit(pack(learnable(20)), QUICK).network
    before = {name: value.clone() for name, value in base.state_dict().items()}
    still = replace(QUICK, epochs=1, learning_rate=1e-12, weight_decay=0.0)
    found = fit(pack(on_h20(12, 5)), still, beginning=Beginning(base)).network.state_dict()
    for name, value in before.items():
        torch.testing.assert_close(found[name], value)
        assert torch.equal(base.state_dict()[name], value)


def test_once_each_is_what_happens_anyway() -> None:
    """A fit that is told to repeat nothing comes to the same bytes as one that is told nothing."""
    packed = pack(learnable(20))
    plain = fit(packed, QUICK).network.state_dict()
    told = fit(packed, QUICK, beginning=Beginning(repeats=torch.ones(20, dtype=torch.int64))).network.state_dict()
    assert all(torch.equal(value, told[name]) for name, value in plain.items())


@pytest.mark.long
def test_a_few_problems_are_enough(tmp_path: Path) -> None:
    """With ten problems of a new device, going on from a model of another errs less than beginning anew."""
    known, new, unseen = learnable(80, 1), on_h20(10, 2), on_h20(40, 3)
    recipe = replace(QUICK, epochs=30)
    base = fit(pack(known), recipe).network
    model = artifact.load(_saved(base, known, tmp_path))
    start = warm_start.WarmStart(model, base, known)
    shortly = start.gently(recipe)
    assert (shortly.epochs, shortly.learning_rate, shortly.members) == (25, 9e-3, 2)
    went_on = fit_and_judge(new, shortly, 2, start=start)
    assert went_on.evaluation is not None
    assert went_on.evaluation.all_choices.model.problems == 10
    anew = fit_and_judge(new, recipe, 0)
    assert error(went_on.fit.network, unseen) < error(anew.fit.network, unseen) / 2
    assert error(went_on.fit.network, known) < error(anew.fit.network, known) / 2


def _saved(network: TimingNetwork, learned: ExampleSet, folder: Path) -> Path:
    from saved_models import CARD

    path = folder / "base.pt"
    card = replace(CARD, model_type=network.model_type, domain=learned.domain())
    artifact.save(path, network, card, trained_on=[example.shape for example in learned])
    return path


def test_a_checkpoint_of_another_beginning_is_refused(tmp_path: Path) -> None:
    """An interrupted fit goes on only from what it began with."""
    packed = pack(learnable(12))
    base = fit(packed, QUICK).network

    def interrupted() -> None:
        with unfinished(tmp_path / "m.pt", resume=False) as folder:
            folder.checkpoint("final", packed, QUICK, 1, "cpu", Beginning(base)).save({})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with unfinished(tmp_path / "m.pt", resume=True) as folder:
        assert folder.checkpoint("final", packed, QUICK, 1, "cpu", Beginning(base)).start() is not None
        with pytest.raises(ModelError, match="the interrupted fit had another --warm-start; repeat its options"):
            folder.checkpoint("final", packed, QUICK, 1, "cpu")


@pytest.mark.long
def test_what_is_begun_with(really_shipped: str) -> None:
    """The shipped model and what it learned from, for another device of its vendor, and for no other."""
    start = warm_start.find([H20])
    assert start is not None
    assert start.facts() == {
        "model": really_shipped,
        "sha256": start.model.sha256,
        "hardware": ["NVIDIA H100 80GB HBM3", "NVIDIA H200"],
        "problems": 20,
    }
    assert all(start.model.was_trained_on(example.shape) for example in start.known)
    h200 = start.model.card.hardware[-1]
    assert warm_start.find([H20, Hardware(h200.vendor, h200.name, h200.arch, h200.multiprocessors)]) is None
    assert warm_start.find([CPU]) is None


def test_nothing_to_begin_with() -> None:
    """Without a shipped model a fit begins with nothing."""
    assert warm_start.find([H20]) is None


@pytest.mark.long
def test_a_model_that_cannot_be_begun_with(saved: Path) -> None:
    """One that knows the device, or learned from nothing that is at hand, is refused with the reason."""
    model = artifact.load(saved)
    (device,) = model.card.hardware
    itself = Hardware(device.vendor, device.name, device.arch, device.multiprocessors)
    with pytest.raises(ModelError, match="learned from NVIDIA H200 itself"):
        warm_start.named(str(saved), [itself])
    with pytest.raises(ModelError, match=r"learned from none of [\d,]+ bundled measurements"):
        warm_start.named(str(saved), [H20])
    with pytest.raises(ModelError, match="no model 'nobody'"):
        warm_start.named("nobody", [H20])


@pytest.fixture
def h20_file(tmp_path: Path) -> Path:
    """Return a file of 12 problems that were timed on an H20."""
    path = tmp_path / "h20.jsonl"
    measured = [replace(measurement_of(i, example), hardware=H20) for i, example in enumerate(learnable(12))]
    with path.open("wb") as stream:
        jsonl.write(stream, measured)
    return path


def run(diode: RunCommand, file: Path, *options: str) -> Any:
    """Train on a file without folds, for one epoch."""
    output = file.with_name("m.pt")
    return diode("train", "--dataset", str(file), "--folds", "0", "--num-epochs", "1", "-o", str(output), *options)


@pytest.mark.long
def test_training_for_another_device(diode: RunCommand, h20_file: Path, really_shipped: str) -> None:
    """It begins with the shipped model unasked and says so; the card keeps it, and the command that does it again."""
    result = run(diode, h20_file)
    assert result.code == 0, result.err
    known = "NVIDIA H100 80GB HBM3, NVIDIA H200"
    assert f"starts from {really_shipped}, which knows {known}, and trains on 20 problems of it again" in result.err
    card = read_card(h20_file.with_name("m.json"))
    assert card.training["warm_start"]["model"] == really_shipped
    assert (card.training["epochs"], card.training["learning_rate"], card.training["members"]) == (1, 9e-3, 6)
    assert f"--warm-start {really_shipped}" in card.command
    assert [device.name for device in card.hardware] == ["NVIDIA H20"]
    assert (card.data["problems"], len(artifact.load(h20_file.with_name("m.pt")).trained_on)) == (12, 12)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "options", [("--warm-start", "none"), ("--hidden-dim", "8"), ("--members", "2"), ("--model-type", "base")]
)
def test_beginning_with_nothing(
    diode: RunCommand, h20_file: Path, really_shipped: str, options: tuple[str, str]
) -> None:
    """Asked for, or where the layers or members are to be others than the shipped model's."""
    result = run(diode, h20_file, *options)
    assert result.code == 0, result.err
    assert "starts from" not in result.err
    assert "warm_start" not in json.loads(h20_file.with_name("m.json").read_text())["training"]


@pytest.mark.long
@pytest.mark.parametrize("options", [("--num-layers", "2"), ("--members", "12"), ("--model-type", "base")])
def test_layers_beside_a_model_to_begin_with(
    diode: RunCommand, h20_file: Path, really_shipped: str, options: tuple[str, str]
) -> None:
    """A model has its own type, layers and members, so others contradict it."""
    result = run(diode, h20_file, "--warm-start", really_shipped, *options)
    said = " ".join(result.err.split())
    assert (result.code, "has its own type, layers and members; leave out these options" in said) == (2, True)
