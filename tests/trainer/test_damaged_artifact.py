"""A saved model that is damaged, or whose files do not belong together, is refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import zipfile
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_models import CALIBRATION, CARD, DIMENSIONS, DOMAIN, change, checkpoint, edit_card, torch_bytes
from synthetic import MM

from diode_store.errors import ModelError
from diode_trainer import artifact
from diode_trainer.card import Calibration, card_path, read_card
from diode_trainer.features import FEATURE_VERSION
from diode_trainer.judging.verify import verify
from diode_trainer.models import MatmulTimingModel, TimingNetwork

if TYPE_CHECKING:
    from pathlib import Path


class Harmful:
    """What loading a pickle can do."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Run a command."""
        return os.mkdir, ("harmed",)


def refusal(path: Path) -> str:
    """Return the message with which a model is refused; it is one line that names the file."""
    with pytest.raises(ModelError) as caught:
        artifact.load(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.stem in message
    return message


def test_missing_model(tmp_path: Path) -> None:
    """A model that is not there is named, with the command that lists models."""
    assert "no such model; `diode models list`" in refusal(tmp_path / "none.pt")


def test_missing_card(saved: Path) -> None:
    """A checkpoint needs its card, which says what its bytes should be."""
    card_path(saved).unlink()
    assert "small.json: the model's card is missing; copy it beside small.pt" in refusal(saved)


@pytest.mark.parametrize("card", ["", "{", "[]", "{}", '{"name": "small"}', "null"])
def test_damaged_card(saved: Path, card: str) -> None:
    """A card that is none is refused."""
    card_path(saved).write_text(card)
    assert "small.json: not a model card" in refusal(saved)


def test_card_with_a_part_of_another_kind(saved: Path) -> None:
    """What is shown of a card must be what it shows."""
    content = json.loads(card_path(saved).read_text())
    card_path(saved).write_text(json.dumps({**content, "data": None}))
    assert "small.json: not a model card (it holds a JSON NoneType, not an object)" in refusal(saved)


def test_card_of_another_model(network: TimingNetwork, saved: Path, tmp_path: Path) -> None:
    """Files that do not belong together are refused."""
    with torch.no_grad():
        network.out_bias += 1
    artifact.save(tmp_path / "other.pt", network, CARD)
    card_path(tmp_path / "other.pt").replace(card_path(saved))
    assert "damaged, or not the model of its card" in refusal(saved)


CHANGED_DOMAINS: list[tuple[str, object]] = [
    ("hardware", []),
    ("hardware", [{"name": "NVIDIA H100", "arch": "sm_90", "multiprocessors": 132, "vendor": "nvidia"}]),
    ("ops", ["bmm", "mm"]),
    ("dtypes", []),
    ("layouts", ["nn"]),
    ("templates", []),
    ("shapes", {}),
    ("shapes", {"b": [1, 1], "m": [8, 4096], "n": [8, 4096], "k": [8, 4097]}),
]


@pytest.mark.parametrize(("name", "value"), CHANGED_DOMAINS)
def test_card_of_another_domain(saved: Path, name: str, value: object) -> None:
    """A card that claims another domain than the checkpoint was trained on would be believed, so it is refused."""
    domain = json.loads(card_path(saved).read_text())["domain"]
    edit_card(saved, domain={**domain, name: value})
    assert refusal(saved) == (
        f"{card_path(saved)}: differs from the model in domain.{name}; copy the card that was written with"
        " small.pt, or train it again with `diode-train`"
    )


@pytest.mark.parametrize("fields", [{"feature_version": FEATURE_VERSION + 1}, {"model_type": "base"}])
def test_card_of_another_kind(saved: Path, fields: dict[str, object]) -> None:
    """A card that claims other features or another type of model is refused, as `diode models verify` says, too."""
    assert verify(saved) is None
    edit_card(saved, **fields)
    assert f"differs from the model in {next(iter(fields))}; copy the card" in refusal(saved)
    assert verify(saved) == refusal(saved)


@pytest.fixture
def calibrated(network: TimingNetwork, tmp_path: Path) -> Path:
    """Return the checkpoint of a model that knows what its members' spread is worth."""
    path = tmp_path / "calibrated.pt"
    artifact.save(path, network, replace(CARD, calibration=CALIBRATION), trained_on=[MM])
    return path


def test_calibration_comes_back(calibrated: Path) -> None:
    """What is known of the members' spread is in the checkpoint and on the card."""
    assert artifact.load(calibrated).card.calibration == CALIBRATION
    assert checkpoint(calibrated)["calibration"]["uncertainty"] == asdict(CALIBRATION)


def test_calibration_of_an_older_card() -> None:
    """One that does not know of odd rows and long lists takes all problems to be alike."""
    old = {name: value for name, value in asdict(CALIBRATION).items() if not name.startswith(("odd", "length"))}
    read = Calibration.from_plain(old)
    assert (read.odd_spread, read.odd_offset, read.length_spread, read.length_offset) == (0.0, 0.0, 0.0, 0.0)
    assert read.at(is_odd=True, length=1000) == read


def test_model_without_calibration_loads(saved: Path) -> None:
    """A model that nothing was held out for, or that is older, has none."""
    content = json.loads(card_path(saved).read_text())
    del content["calibration"]
    card_path(saved).write_text(json.dumps(content))
    assert artifact.load(saved).card.calibration is None


def test_card_of_another_calibration(calibrated: Path) -> None:
    """A card that claims the model to be surer than it is would be believed, so it is refused."""
    edit_card(calibrated, calibration={**asdict(CALIBRATION), "spread": 0.1})
    assert "differs from the model in calibration; copy the card" in refusal(calibrated)


@pytest.mark.parametrize("spread", ["wide", None, float("inf")])
def test_invalid_calibration(calibrated: Path, spread: object) -> None:
    """A calibration that is no numbers is refused in one line."""
    content = checkpoint(calibrated)["calibration"]
    change(calibrated, calibration={**content, "uncertainty": {**asdict(CALIBRATION), "spread": spread}})
    assert "has a missing or invalid field" in refusal(calibrated)


def test_card_of_a_bare_state_dict(network: TimingNetwork, saved: Path) -> None:
    """A bare state dict holds nothing to compare a card's domain with, but its card must be of our features."""
    content = torch_bytes(network.state_dict())
    saved.write_bytes(content)
    edit_card(saved, sha256=hashlib.sha256(content).hexdigest())
    assert artifact.load(saved).card.domain == DOMAIN
    edit_card(saved, feature_version=FEATURE_VERSION + 1)
    assert "differs from the model in feature_version" in refusal(saved)


DAMAGED = {
    "empty": (b"", "not a whole checkpoint"),
    "text": (b"hello", "not a whole checkpoint"),
    "bare pickle": (pickle.dumps({"a": 1}), "is a bare pickle, which could run code"),
    "harmful pickle": (pickle.dumps(Harmful()), "is a bare pickle, which could run code"),
    "harmful checkpoint": (torch_bytes({"model": Harmful()}), "contains more than tensors and plain values"),
    "whole module": (torch_bytes(MatmulTimingModel(*DIMENSIONS, (4,))), "contains more than tensors and plain values"),
    "list": (torch_bytes([1, 2]), "holds a list, not a checkpoint"),
    "tensor": (torch_bytes(torch.zeros(3)), "holds a Tensor, not a checkpoint"),
    "other state dict": (torch_bytes({"layer.weight": torch.zeros(2, 2)}), "not the state dict of a diode model"),
    "other dimensions": (
        torch_bytes(MatmulTimingModel(7, 5, (4,)).state_dict()),
        f"expected {DIMENSIONS[0]} problem and {DIMENSIONS[1]} config features, got a model of 7 and 5",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_file(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a checkpoint of tensors is refused, and nothing in it is run."""
    monkeypatch.chdir(tmp_path)
    content, expected = DAMAGED[case]
    (tmp_path / "bad.pt").write_bytes(content)
    assert expected in refusal(tmp_path / "bad.pt")
    assert not (tmp_path / "harmed").exists()


def test_zip_of_something_else(tmp_path: Path) -> None:
    """A zip file is not a checkpoint yet."""
    with zipfile.ZipFile(tmp_path / "bad.pt", "w") as archive:
        archive.writestr("a.txt", "hello")
    assert "not a readable checkpoint" in refusal(tmp_path / "bad.pt")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 0.999), flip=st.integers(1, 255))
def test_any_damage_is_noticed(saved: Path, cut: float, flip: int) -> None:
    """A cut or changed checkpoint is refused, with its card and without."""
    whole = saved.read_bytes()
    position = int(cut * len(whole))
    damaged = saved.with_name("damaged.pt")
    damaged.write_bytes(whole[:position])
    refusal(damaged)
    damaged.write_bytes(whole[:position] + bytes([whole[position] ^ flip]) + whole[position + 1 :])
    card_path(damaged).write_bytes(card_path(saved).read_bytes())
    assert "damaged" in refusal(damaged)
    card_path(damaged).unlink()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"feature_version": FEATURE_VERSION + 1}, f"expected feature version {FEATURE_VERSION}, got a model made for"),
        ({"problem_feature_dim": 7}, "the checkpoint says NetworkDimensions(problem_feature_dim=7"),
        ({"hidden_layer_widths": [10**12]}, "the checkpoint says"),
        ({"members": "three"}, "the checkpoint says"),
        ({"model_type": "wide"}, "unknown model type 'wide'"),
        ({"normalisation": {}}, "its tensors do not make a model"),
        ({"normalisation": None}, "has a missing or invalid field"),
        ({"model_state_dict": [1]}, "has a missing or invalid field"),
        ({"calibration": {}}, "has a missing or invalid field ('hardware')"),
        ({"trained_on": "everything"}, "has a missing or invalid field"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_field(saved: Path, fields: dict[str, object], expected: str) -> None:
    """A field that does not fit is named, with what was expected."""
    change(saved, **fields)
    assert expected in refusal(saved)


def test_weights_must_be_numbers(saved: Path) -> None:
    """A model whose training went wrong is refused."""
    state = {name: value * float("nan") for name, value in checkpoint(saved)["model_state_dict"].items()}
    change(saved, model_state_dict=state)
    assert "its weights are not all finite numbers" in refusal(saved)


def test_newer_card_fields_are_ignored(saved: Path) -> None:
    """What a newer version adds to a card does not make it unreadable."""
    edit_card(saved, mood="good")
    assert read_card(card_path(saved)).name == "small"


def test_a_tensor_larger_than_its_file(saved: Path) -> None:
    """One number that says it is 10^12 of them is refused before anything is made of it."""
    change(saved, trained_on=torch.zeros(1, dtype=torch.int64).expand(10**12))
    assert "has a tensor of 1,000,000,000,000 elements, which its file does not hold; train it again" in refusal(saved)


def test_lists_of_the_same_list(saved: Path) -> None:
    """Few references that stand for 10^12 entries are refused, also where only a message would name them all."""
    widths: list[Any] = [8] * 10
    for _ in range(11):
        widths = [widths] * 10
    change(saved, hidden_layer_widths=widths)
    assert "has more than 1,000,000 plain values; train it again" in refusal(saved)


def test_a_checkpoint_that_unpacks_to_more(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed archive is refused by the sizes in its directory."""
    monkeypatch.setattr(artifact, "MAX_MODEL_BYTES", 2**20)
    with zipfile.ZipFile(saved, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("x/data/9", "w") as entry:
        entry.write(bytes(2**20))
    edit_card(saved, sha256=hashlib.sha256(saved.read_bytes()).hexdigest())
    assert "unpacks to more than 1 MiB, the limit for a model" in refusal(saved)
