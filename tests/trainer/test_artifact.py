"""A saved model: what is written comes back, and answers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from saved_models import CARD, DIMENSIONS, DOMAIN, checkpoint
from synthetic import H200, MM, columns

from diode_store.errors import ModelError
from diode_trainer import artifact
from diode_trainer.card import Domain, card_path, shape_digest
from diode_trainer.models import DeepMatmulTimingModel, MatmulTimingModel, TimingNetwork
from diode_trainer.scoring import Scorer

if TYPE_CHECKING:
    from pathlib import Path


def test_round_trip(network: TimingNetwork, saved: Path) -> None:
    """A loaded model has the weights, the card and the predictions of the saved one."""
    loaded = artifact.load(saved)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(loaded.network.state_dict()[name], value, rtol=0, atol=0)
    assert replace(loaded.card, sha256="") == CARD
    assert loaded.sha256 == loaded.card.sha256
    assert len(loaded.sha256) == 64
    expected = Scorer(network, DOMAIN.templates).predict_us(MM, H200, columns())
    np.testing.assert_array_equal(loaded.predict_us(MM, H200, columns()), expected)


def test_card_says_what_is_covered(saved: Path) -> None:
    """Hardware, ops and dtypes are at hand."""
    card = artifact.load(saved).card
    assert [device.name for device in card.hardware] == ["NVIDIA H200"]
    assert (card.ops, card.dtypes) == (("mm",), ("bfloat16",))


def test_trained_on(saved: Path) -> None:
    """A model knows the problems that it has learned from."""
    loaded = artifact.load(saved)
    assert loaded.was_trained_on(MM)
    assert not loaded.was_trained_on(replace(MM, m=MM.m + 1))


def test_shape_digest_is_pinned() -> None:
    """Digests in shipped models stay valid."""
    assert shape_digest(MM) == -4349530755167251238


def test_checkpoint_has_the_promised_fields(saved: Path) -> None:
    """The checkpoint is a plain dict with the fields that others read."""
    content = checkpoint(saved)
    assert {
        "problem_feature_dim",
        "config_feature_dim",
        "hidden_layer_widths",
        "model_state_dict",
        "normalisation",
        "feature_version",
        "model_type",
        "calibration",
    } <= set(content)
    assert (content["problem_feature_dim"], content["config_feature_dim"]) == DIMENSIONS
    assert (content["hidden_layer_widths"], content["model_type"]) == ([8, 4], "deep")
    assert not any(name.startswith("normalisation") for name in content["model_state_dict"])


def test_save_replaces_whole_files(network: TimingNetwork, saved: Path) -> None:
    """Saving again leaves two files, both new, readable by others, and nothing beside them."""
    artifact.save(saved, network, replace(CARD, name="again"))
    assert sorted(path.name for path in saved.parent.iterdir()) == ["small.json", "small.pt"]
    assert artifact.load(saved).card.name == "again"
    assert oct(saved.stat().st_mode & 0o777) == "0o644"


def test_save_that_fails_changes_nothing(network: TimingNetwork, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full, the old files stay whole and no part of the new ones is left."""
    before = saved.read_bytes(), card_path(saved).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"small\.pt: cannot write the model \(No space left on device\)"):
        artifact.save(saved, network, replace(CARD, name="again"))
    assert (saved.read_bytes(), card_path(saved).read_bytes()) == before
    assert len(list(saved.parent.iterdir())) == 2


def test_save_makes_its_folder(network: TimingNetwork, tmp_path: Path) -> None:
    """A new purpose's folder is made."""
    artifact.save(tmp_path / "a" / "b" / "m.pt", network, CARD)
    assert artifact.load(tmp_path / "a" / "b" / "m.pt").card.name == "small"


@pytest.mark.parametrize(("kind", "members"), [(MatmulTimingModel, 1), (DeepMatmulTimingModel, 2)])
def test_bare_state_dict(tmp_path: Path, kind: type[TimingNetwork], members: int) -> None:
    """A state dict without a card is loaded; its dimensions follow from its tensors."""
    model = kind(*DIMENSIONS, (8,), members)
    torch.save(model.state_dict(), tmp_path / "bare.pt")
    loaded = artifact.load(tmp_path / "bare.pt")
    assert isinstance(loaded.network, kind)
    assert (loaded.card.name, loaded.card.domain, loaded.network.members) == ("bare", Domain(), members)
    assert np.isfinite(loaded.predict_us(MM, H200, columns())).all()


def test_threads_may_ask_at_once(saved: Path) -> None:
    """Concurrent questions get the answers they would get alone."""
    model = artifact.load(saved)
    shapes = [replace(MM, m=64 * (i + 1)) for i in range(8)]
    expected = [model.predict_us(shape, H200, columns()) for shape in shapes]
    answers: list[Any] = [None] * len(shapes)

    def ask(i: int) -> None:
        for _ in range(20):
            answers[i] = model.predict_us(shapes[i], H200, columns())

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(shapes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer, right in zip(answers, expected, strict=True):
        np.testing.assert_array_equal(answer, right)


def test_predictions_ignore_torchs_modes(saved: Path) -> None:
    """Inside a compile, where tensors are fake or live elsewhere by default, predictions stay the same."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = artifact.load(saved)
    expected = model.predict_us(MM, H200, columns())
    with FakeTensorMode(), torch.device("meta"), torch.autocast("cpu"):
        np.testing.assert_array_equal(model.predict_us(MM, H200, columns()), expected)


@pytest.mark.long
def test_light_imports() -> None:
    """Loading and asking a model needs neither the warehouse's libraries nor a terminal's."""
    script = (
        "import sys, diode_trainer.artifact, diode_trainer.features, diode_trainer.models\n"
        "heavy = {'sqlalchemy', 'alembic', 'duckdb', 'pyarrow', 'typer', 'rich', 'platformdirs'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[]"
