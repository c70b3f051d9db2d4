"""`torch_diode.install(picks=…)` and DIODE_PICKS: with a model, without one, and with a file that cannot be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hooked import OPS, watching
from picks_of import VENDOR, tile, write

from diode_integration import install
from diode_store.errors import ModelError, PicksError
from inductor_harness import compile_and_run

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from conftest import SaveModel
    from diode_integration.picks.search import FilePicks


def obeyed() -> FilePicks | None:
    """Return the picks of the installed handler."""
    handler = install.installed()
    assert handler is not None
    return handler._picks


def test_beside_a_model(torch_diode: ModuleType, save_model: SaveModel, tmp_path: Path) -> None:
    """The option by name; the file is part of the cache key."""
    save_model()
    path = write(tmp_path / "p.json", {"mm": (tile(),)})
    assert torch_diode.install(picks=path)
    picks, handler = obeyed(), install.installed()
    assert picks is not None
    assert handler is not None
    assert handler.model is not None
    assert picks.key in handler.uuid()


@pytest.mark.parametrize("by_variable", [False, True])
def test_without_any_model(
    by_variable: bool,  # noqa: FBT001 - a parameter of pytest's
    torch_diode: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file alone is enough: its problems are decided, and stock Inductor chooses for the others."""
    path = write(tmp_path / "p.json", {"mm": (VENDOR["mm"],)})
    options = {"hardware": "h200"}
    if by_variable:
        monkeypatch.setenv("DIODE_PICKS", str(path))
    else:
        options["picks"] = str(path)
    assert torch_diode.install(**options)
    assert list(torch_diode.get_integration_status().values()) == [f"engaged {path}, without a model"]
    with watching() as watch:
        for op in ("mm", "bmm"):
            function, shapes = OPS[op]
            compile_and_run(function, *(torch.randn(shape) for shape in shapes))
    assert watch.left[0] == ["mm"]
    assert len(watch.left[1]) > 10
    assert torch_diode.get_stats()["picked_from_file"] == 1


def test_without_a_model_or_picks(torch_diode: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before: there is nothing to choose with; nor is there with a file that cannot be read."""
    assert not torch_diode.install()
    monkeypatch.setenv("DIODE_PICKS", "/nowhere/p.json")
    assert not torch_diode.install()


def test_a_model_that_was_asked_for_is_missed(torch_diode: ModuleType, tmp_path: Path) -> None:
    """Picks do not hide a mistake in another option."""
    path = write(tmp_path / "p.json", {"mm": (VENDOR["mm"],)})
    with pytest.raises(ModelError):
        torch_diode.install(model="nobody", picks=path)


@pytest.mark.parametrize("with_model", [True, False])
def test_an_option_that_cannot_be_used_is_raised(
    with_model: bool,  # noqa: FBT001 - a parameter of pytest's
    torch_diode: ModuleType,
    save_model: SaveModel,
    tmp_path: Path,
) -> None:
    """By ``install``, in one line; of another device too, where the device is named."""
    if with_model:
        save_model()
    with pytest.raises(PicksError, match=r"^/nowhere/p\.json: cannot read the picks"):
        torch_diode.install(picks="/nowhere/p.json")
    path = write(tmp_path / "p.json", {"mm": (VENDOR["mm"],)})
    with pytest.raises(PicksError, match=r"picks of NVIDIA H200 .*, not of NVIDIA L4 "):
        torch_diode.install(picks=path, hardware="l4")


def test_a_variable_that_cannot_be_used_is_logged(
    torch_diode: ModuleType, save_model: SaveModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever set it: the program that installs the hook goes on, with or without options of its own."""
    save_model()
    monkeypatch.setenv("DIODE_PICKS", "/nowhere/p.json")
    for options in ({}, {"mode": "zero"}):
        caplog.clear()
        assert torch_diode.install(**options)
        assert obeyed() is None
        said = (
            "no picks file is used: DIODE_PICKS: /nowhere/p.json: cannot read the picks (No such file or directory); "
        )
        assert [line.startswith(said) for line in caplog.messages if "picks" in line] == [True]


def test_lock_is_offered(torch_diode: ModuleType, tmp_path: Path) -> None:
    """Importing is enough to lock what a run chose; a folder that is not there is said before anything is compiled."""
    with pytest.raises(PicksError, match="there is no folder"), torch_diode.lock(tmp_path / "none" / "p.json"):
        raise AssertionError("nothing may run")
