"""Where the model of a device goes, and how it compares with the one that it began with."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from diode_trainer.card import card_path
from diode_tuning.commands.tune import _print_done
from diode_tuning.installing import better_beginning
from stand_ins import card_of

if TYPE_CHECKING:
    from pathlib import Path

BEGAN = {"warm_start": {"model": "v4_model", "sha256": "ab" * 32}}


def compared(its: float, name: str = "v4_model", sha256: str = "ab" * 32) -> dict[str, Any]:
    """Return what a card says of another model, where its own first choice loses 6.3%."""
    return {sha256: {"name": name, "problems": 103, "regret_at_1": 1.063, "its_regret_at_1": its}}


@pytest.mark.parametrize(
    ("training", "others", "is_better"),
    [
        (BEGAN, compared(1.053), True),
        (BEGAN, compared(1.073), False),
        (BEGAN, compared(1.053, sha256="cd" * 32), False),
        (BEGAN, {}, False),
        ({}, compared(1.053), False),
    ],
)
def test_the_beginning_may_have_been_better(
    tmp_path: Path, training: dict[str, Any], others: dict[str, Any], *, is_better: bool
) -> None:
    """Only the model that it began with counts, on problems that none of both had seen."""
    path = tmp_path / "model.pt"
    card = replace(card_of(), training=training, compared=others)
    card_path(path).write_text(json.dumps(asdict(card)))
    assert better_beginning(path) == (others["ab" * 32] if is_better else None)


def test_without_a_card_nothing_is_said(tmp_path: Path) -> None:
    """What cannot be read is no reason to fail at the very end."""
    assert better_beginning(tmp_path / "model.pt") is None


def test_a_better_beginning_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With both losses, on how many problems, and what to do."""
    done = {"model": "model.pt", "picks": None, "previous": None, "better_beginning": compared(1.053)["ab" * 32]}
    _print_done(done)
    printed = capsys.readouterr()
    assert "v4_model, from which the model started, is better on 103 problems of this device" in printed.err
    assert "loses 5.3%, the new model's 6.3%. Run `diode tune` again" in printed.err
    _print_done(done | {"better_beginning": None})
    assert capsys.readouterr().err == ""
