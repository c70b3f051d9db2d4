"""The hook's options, and the environment variables that stand in for them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.abstention import Unknown
from diode_integration.matmul import create_matmul_integration
from diode_integration.settings import HookSettings
from diode_store.errors import ModelError, SettingsError
from diode_trainer.policy import Mode
from stand_ins import TileModel

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import SaveModel


def handler(**options: object) -> DiodeInductorChoices:
    """Return a handler for an H200 with these options."""
    return DiodeInductorChoices(model=TileModel(), hardware="h200", **options)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIODE_MODE", "DIODE_TOP_K", "DIODE_UNKNOWN", "DIODE_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_mode_is_taken_from_the_environment(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_MODE names it, and with it who chooses where the model is not believed."""
    monkeypatch.setenv("DIODE_MODE", mode.value)
    assert handler().policy.mode is mode
    assert handler().unknown is (Unknown.VENDOR if mode is Mode.ZERO else Unknown.AUTO)


def test_the_number_of_candidates_asks_for_top_k_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_TOP_K alone is enough."""
    monkeypatch.setenv("DIODE_TOP_K", "5")
    assert (handler().policy.mode, handler().policy.top_k_configs) == (Mode.TOP_K, 5)


@pytest.mark.parametrize("option", [{"mode": "top_k"}, {"top_k_configs": 2}, {"performance_threshold": 1.2}])
def test_code_wins_over_the_environment(option: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given in code about how many to benchmark counts alone."""
    monkeypatch.setenv("DIODE_MODE", "zero")
    monkeypatch.setenv("DIODE_TOP_K", "7")
    monkeypatch.setenv("DIODE_UNKNOWN", "stock")
    policy = handler(**option).policy
    assert (policy.mode, policy.top_k_configs) == (Mode.TOP_K, option.get("top_k_configs", 3))
    assert handler(**option).unknown is Unknown.STOCK
    assert handler(unknown="vendor").unknown is Unknown.VENDOR


def test_empty_variables_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell leaves them that unsets by assigning nothing."""
    for name in ("DIODE_MODE", "DIODE_TOP_K", "DIODE_UNKNOWN", "DIODE_MODEL"):
        monkeypatch.setenv(name, "")
    assert (handler().policy.mode, handler().unknown, HookSettings.of().checkpoint()) == (
        Mode.TOP_K,
        Unknown.AUTO,
        None,
    )


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DIODE_MODE", "fast", "DIODE_MODE: mode must be one of top_k, zero, adaptive, not 'fast'"),
        ("DIODE_TOP_K", "many", "DIODE_TOP_K: must be a whole number of at least 1, not 'many'"),
        ("DIODE_TOP_K", "0", "DIODE_TOP_K: top_k_configs must be a whole number of at least 1, not 0"),
        ("DIODE_UNKNOWN", "cublas", "DIODE_UNKNOWN: unknown must be one of vendor, stock, auto, not 'cublas'"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which variable it is and what it may be."""
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        handler()
    assert str(error.value) == message


def test_a_model_is_found_by_path_and_by_name(save_model: SaveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """In code and in the environment; ``~`` is the home folder."""
    path = save_model("mine")
    monkeypatch.setenv("HOME", str(path.parent))
    for text in ("mine", str(path), "~/mine.pt"):
        assert HookSettings.of(model_path=text).checkpoint() == path
        monkeypatch.setenv("DIODE_MODEL", text)
        assert HookSettings.of().checkpoint() == path
        assert DiodeInductorChoices().model.card.name == "mine"  # type: ignore[union-attr]


def test_an_unknown_model_is_said_by_name(
    save_model: SaveModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler made by hand goes on without a model and logs one line; the integration of the import says why."""
    save_model("mine")
    monkeypatch.setenv("DIODE_MODEL", "yours")
    why = "DIODE_MODEL: no model 'yours', neither a file nor a known name; known models: mine"
    with caplog.at_level(logging.WARNING, "diode_integration"):
        assert DiodeInductorChoices().model is None
    assert [record.getMessage() for record in caplog.records] == [f"no usable model: {why}"]
    integration = create_matmul_integration()
    assert not integration.integrate()
    assert integration.state == f"not engaged: {why}"
    with pytest.raises(ModelError, match="no model 'theirs'"):
        create_matmul_integration(model="theirs", enable_fallback=False).integrate()


def test_a_missing_file_is_said_by_its_path(tmp_path: Path) -> None:
    """One line, as of every model that cannot be read."""
    with pytest.raises(ModelError, match=r"none\.pt: no such model"):
        DiodeInductorChoices(tmp_path / "none.pt", enable_fallback=False)
