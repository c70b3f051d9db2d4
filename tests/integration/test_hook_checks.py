"""What `diode doctor` says of the hook, by what the environment asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from diode_integration.hook_checks import check_hook, hook_finding
from diode_store.command_line.diagnosis import Level, Setup
from diode_store.devices.known import known_device
from diode_store.exchange.picks import Picks
from diode_store.system.resources import trained_models_dir
from diode_trainer.card import MATMUL_PURPOSE, card_path, read_card

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.command_line.diagnosis import Finding


def findings() -> list[Finding]:
    """Return what the check of the hook finds."""
    return list(check_hook(Setup(None)))


def test_what_the_hook_would_do() -> None:
    """On a GPU that the model knows it chooses; on another it abstains, which is a warning that says what to run."""
    card = read_card(card_path(next((trained_models_dir() / MATMUL_PURPOSE).glob("*.pt"))))
    known, other = known_device("h200"), known_device("a10g")
    assert known is not None
    assert other is not None
    assert hook_finding([card], known).level is Level.OK
    assert hook_finding([card], replace(known, multiprocessors=66)).level is Level.WARNING
    found = hook_finding([card], other)
    assert (found.level, "`diode tune`" in str(found.remedy)) == (Level.WARNING, True)
    assert hook_finding([card], None).level is Level.OK


@pytest.mark.parametrize(
    ("variable", "value", "said", "remedy"),
    [
        ("DIODE_MODEL", "nope", "DIODE_MODEL: no model 'nope'", "unset it for the models that are known"),
        ("DIODE_MODE", "zer0", "DIODE_MODE: mode must be one of", "correct the variable, or unset it"),
        ("DIODE_TOP_K", "-1", "DIODE_TOP_K: must be a whole number", "correct the variable, or unset it"),
        ("DIODE_UNKNOWN", "never", "DIODE_UNKNOWN: ", "correct the variable, or unset it"),
        ("DIODE_PICKS", "none.json", "DIODE_PICKS: none.json: cannot read the picks", "diode lock"),
    ],
)
def test_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, said: str, remedy: str
) -> None:
    """Each is a problem that names the variable, and a way out; the others are looked at all the same."""
    monkeypatch.chdir(tmp_path)
    sound = findings()
    monkeypatch.setenv(variable, value)
    problems = [finding for finding in findings() if finding.level is Level.PROBLEM]
    assert [(said in finding.text, remedy in str(finding.remedy)) for finding in problems] == [(True, True)]
    assert len(sound) == 1
    assert sound[0].level is Level.OK


def test_picks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file that the hook would obey is named with what it holds; one of another GPU is a warning."""
    known = known_device("h200")
    assert known is not None
    file = tmp_path / "picks.json"
    Picks.of(known, []).write(file)
    monkeypatch.setenv("DIODE_PICKS", str(file))
    found = findings()[-1]
    assert (found.subject, found.level) == ("picks", Level.OK)
    assert found.text == f"{file}: 0 picks for NVIDIA H200"
    monkeypatch.setattr("diode_integration.hook_checks._gpu", lambda: known_device("a10g"))
    found = findings()[-1]
    assert (found.subject, found.level) == ("picks", Level.WARNING)
    assert "none is used on NVIDIA A10G" in found.text
