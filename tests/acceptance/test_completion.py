"""Shell completion, asked for by the variables that a shell sets when somebody presses TAB."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import RunCommand


@pytest.fixture
def completions(diode: RunCommand, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Return a function that completes the last word of a line in bash."""

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_DIODE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        code, out, err = diode()
        assert (code, err) == (0, "")
        return out.split()

    return complete


def test_names_of_commands(completions: Callable[[str], list[str]]) -> None:
    """`diode qu<TAB>` completes a sub-command that no module was imported for, and `diode db up<TAB>` one inside it."""
    assert completions("diode qu") == ["query"]
    assert completions("diode db up") == ["upgrade"]


def test_options_of_a_command_that_is_loaded_when_called(completions: Callable[[str], list[str]]) -> None:
    """`diode query --<TAB>` knows the options of the real command, not those of its stand-in."""
    assert {"--database", "--json", "--version", "--help"} <= set(completions("diode query --"))


def test_values_are_left_to_the_shell(completions: Callable[[str], list[str]]) -> None:
    """After an option that takes a path nothing is offered, so that the shell completes file names."""
    assert completions("diode query --database ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_for_a_shell(diode: RunCommand, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    """`diode` prints what each shell has to run, with the variable that `diode` listens to; its help names how."""
    assert {"--install-completion", "--show-completion"} <= set(diode("--help").out.split())
    monkeypatch.setenv("_DIODE_COMPLETE", f"source_{shell}")
    code, out, err = diode()
    assert (code, err) == (0, "")
    assert f"_DIODE_COMPLETE=complete_{shell}" in out
