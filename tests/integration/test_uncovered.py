"""Saying once that no shipped model knows this machine."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import hooked

from diode_integration.decide import notices
from stand_ins import DOMAIN

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that says which GPUs the driver shows, and which device files there are."""
    monkeypatch.setattr(notices, "_said", defaultdict(threading.Lock))

    def has(*gpus: str, device_file: bool = True) -> None:
        for number, name in enumerate(gpus):
            folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 41\nGPU Excluded:\t No\n")
        monkeypatch.setattr(notices, "_NVIDIA", tmp_path / "gpus")
        monkeypatch.setattr(notices, "_GPU_DEVICES", (tmp_path,) if device_file else ())

    return has


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the user saw."""
    records = (r for r in caplog.records if r.name == "diode_integration" and r.levelno >= logging.WARNING)
    return [record.getMessage() for record in records]


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (("NVIDIA L4", "NVIDIA L4", "Tesla T4"), "does not know NVIDIA L4 (sm_89), Tesla T4 (sm_75)"),
        ((), "finds no GPU"),
    ],
    ids=["others", "none"],
)
def test_an_unknown_machine_is_named_once(
    gpus: tuple[str, ...], words: str, machine: Any, save_model: SaveModel, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names this machine's GPUs, those that the models know, and how to get a model; it comes once."""
    save_model("v1")
    machine(*gpus, device_file=bool(gpus))
    notices.say_at_import()
    notices.say_at_import()
    (line,) = said(caplog)
    assert line == (
        f"torch-diode abstains: it {words}; its models are for NVIDIA H200 (sm_90). Stock Inductor chooses the kernels"
        " (zero mode keeps the vendor kernel)" + (f"; {notices.REMEDY}" if gpus else "")
    )


@pytest.mark.parametrize("gpus", [("NVIDIA H200",), ("NVIDIA L4", "NVIDIA H200"), ()], ids=["known", "one", "hidden"])
def test_a_machine_that_may_be_known_is_not_spoken_of(
    gpus: tuple[str, ...], machine: Any, save_model: SaveModel, caplog: pytest.LogCaptureFixture
) -> None:
    """One GPU that a model knows is enough; where the driver shows none but there is one, the hook will see."""
    save_model("v1")
    machine(*gpus)
    notices.say_at_import()
    assert said(caplog) == []


def test_a_model_of_any_hardware_knows_every_machine(
    machine: Any, save_model: SaveModel, caplog: pytest.LogCaptureFixture
) -> None:
    """A card that names no hardware leaves none out."""
    save_model("v1", domain=replace(DOMAIN, hardware=()))
    machine("NVIDIA L4")
    notices.say_at_import()
    assert said(caplog) == []


def test_the_first_compile_says_it_if_the_import_did_not(machine: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU that the model does not know is named at the first matrix product, once in the process."""
    machine()
    nothing = SimpleNamespace(
        device=lambda: torch.device("cuda"),
        device_type="cuda",
        nodes=list,
        out_dtype=lambda: None,
        shapes_symbolic=tuple,
    )
    with torch._inductor.config.patch(max_autotune=True):
        for _ in range(2):
            handler = hooked(hardware=None)
            assert handler._finalize_template_configs({}, nothing, [], "mm") == []
            assert handler.get_stats()["fallback_hardware"] == 1
    (line,) = said(caplog)
    assert line.startswith(
        "stock Inductor chooses: hardware: torch-diode cannot identify this cuda device; `diode tune` measures"
    )
