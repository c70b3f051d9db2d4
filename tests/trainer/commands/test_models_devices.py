"""How well each model knows a device, as `diode models` tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from saved_models import CARD, small_network

from diode_store.devices.known import require_device
from diode_trainer import artifact, catalogue
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.covered import CoveredHardware, DeviceCheck

if TYPE_CHECKING:
    from conftest import RunCommand

NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
JOINT = replace(
    CARD.domain,
    hardware=tuple(CoveredHardware.of(require_device(name)) for name in NAMES),
    device_checks=tuple(DeviceCheck(name, 300, 1.012, 1.001, 1.01) for name in NAMES),
)


@pytest.fixture(autouse=True)
def two_models() -> None:
    """Save a model of an H200, and one of an H200 and an H100."""
    folder = catalogue.user_models_dir() / MATMUL_PURPOSE
    artifact.save(folder / "one.pt", small_network(), replace(CARD, name="one"))
    artifact.save(folder / "joint.pt", small_network(), replace(CARD, name="joint", domain=JOINT))


@pytest.mark.parametrize(
    ("device", "one", "joint"),
    [
        ("h200", "known", "known"),
        ("NVIDIA H100", "near", "known"),
        ("gh200", "", ""),
        ("NVIDIA GH200 480GB", "near", "known"),
        ("h20", "near", "near"),
        ("l4", "unknown", "unknown"),
    ],
)
def test_the_list_has_a_column(diode: RunCommand, device: str, one: str, joint: str) -> None:
    """By alias or name; of several devices of a name the one that a model learned from is meant, if there is one."""
    result = diode("models", "list", "--hardware", device, "--json")
    if not one:
        assert result.code != 0
        assert "'gh200' could be any of: NVIDIA GH200 144G HBM3e" in result.err
        return
    found = {row["name"]: row["knows it"] for row in json.loads(result.out)}
    assert found == {"one": one, "joint": joint}


def test_the_card_says_why(diode: RunCommand) -> None:
    """A near device by its descriptor; a joint model asked for one device says what its figures are over."""
    near = " ".join(diode("models", "show", "one", "--hardware", "NVIDIA H100 80GB HBM3").out.split())
    assert "on NVIDIA H100 80GB HBM3 near: L2 cache 50 MiB is not 60 MiB and memory bandwidth 3.35 TB/s" in near
    shown = diode("models", "show", "joint", "--hardware", "h100")
    assert "joint is a model of 2 devices; its figures cover all of them" in shown.err
    assert "known: the model learned from it" in shown.out
    assert "without NVIDIA H200 its regret@1 there is 1.0120 on 300 problems" in " ".join(shown.out.split())
    plain = json.loads(diode("models", "show", "joint", "--hardware", "h20", "--json").out)
    assert plain["standing"]["familiarity"] == "near"
    assert plain["domain"]["device_checks"][0]["device"] == NAMES[0]


def test_a_name_that_nobody_knows(diode: RunCommand) -> None:
    """One line lists those that are known."""
    result = diode("models", "show", "joint", "--hardware", "Voodoo 2")
    assert result.code != 0
    assert "no device is known by the name 'Voodoo 2'; known: NVIDIA B200, " in " ".join(result.err.split())
