"""Every option of every command, with values that nobody should give."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from diode_store.command_line.cli import command_entries, load_command
from diode_store.warehouse.store import Store
from lanes import sizes
from samples import measurement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import CommandResult, RunCommand

HOSTILE = (
    "nan",
    "../file/x.csv",
    "",
    ".",
    "mysql://",
    "voodoo",
    "-inf",
    "1e999",
    "99999999999999999999999",
    "/dev/null/x",
    "x" * 300,
    "~nobody-of-that-name/x",
    "\N{SNOWMAN};'\"%00",
)
NO_NUMBERS = {"", "nan", "-inf", "1e999", "voodoo", "."}
"""Values that no option for a number takes."""
NO_OUTPUT = {"", "../file/x.csv", "/dev/null/x"}
"""Values that no option for a file or folder to write takes."""
OUTPUTS = {"output", "report", "report_pictures", "history_picture", "tensorboard"}
ENDS_EARLY = {
    ("collect",): ("--dry-run", "--hardware", "h200", "--shape", "mm:8x8x8"),
    ("collect", "create-validation"): ("--dry-run", "--hardware", "h200", "--shape", "mm:8x8x8"),
    ("collect-and-train",): ("--dry-run", "--skip-training"),
    ("compare",): ("--model", "absent", "--max-autotune-solution", "absent.json", "--dataset", "absent.jsonl"),
    ("corrections",): ("--hardware", "absent", "--output", "out.csv"),
    ("evaluate",): ("--model", "absent", "--dataset", "absent.jsonl"),
    ("export",): ("--output", "out.jsonl"),
    ("ingest", "pack"): ("--output", "out.seg"),
    ("ingest", "run"): ("--spool", "../file/absent"),
    ("lock",): ("--output", "picks.json"),
    ("predict",): ("--shape", "mm:8x8x8", "--hardware", "absent"),
    ("report",): ("--output", "out", "--page", "/absent"),
    ("serve",): ("--listen", "nowhere"),
    ("train",): ("--dataset", "absent.jsonl"),
    ("tune",): ("--dry-run", "--hardware", "absent"),
}
"""Options with which a command ends soon, whatever else it is given."""


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and its sub-commands, each with its path."""
    yield path, command
    for name, own in getattr(command, "commands", {}).items():
        yield from commands(own, (*path, name))


def valued(command: Any) -> list[Any]:
    """Return the options that take a value."""
    return [each for each in command.params if each.param_type_name == "option" and not each.is_flag]


EVERY = [
    pytest.param(path, command, id="-".join(path))
    for name, entry in command_entries().items()
    if entry.module.startswith("diode_")
    for path, command in commands(load_command(entry), (name,))
    if valued(command)
]


@pytest.mark.parametrize("command", [("collect", "--hardware", "h200", "--num-shapes", "2"), ("collect-and-train",)])
@pytest.mark.parametrize("option", ["--min-size", "--max-size"])
def test_sizes_beyond_any(diode: RunCommand, command: tuple[str, ...], option: str) -> None:
    """Where problems are drawn."""
    result = diode(*command, "--dry-run", option, "9" * 23)
    assert result.code == 2
    assert option in result.err


@pytest.mark.parametrize("count", sizes(1, len(HOSTILE)))
@pytest.mark.parametrize(("path", "command"), EVERY)
def test_a_hostile_value_is_one_line(
    diode: RunCommand,
    database_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: tuple[str, ...],
    command: Any,
    count: int,
) -> None:
    """It is refused with a line that names the option, or taken as a name; no command ends in a traceback."""
    with Store.open(str(database_path)) as store:
        store.write([measurement(1)])
    monkeypatch.setenv("DIODE_DATABASE_URL", str(database_path))
    (database_path.parent / "file").touch()
    arguments = ["absent" for each in command.params if each.param_type_name == "argument" and each.required]
    said = []
    for number, (option, value) in enumerate(product(valued(command), HOSTILE[:count])):
        folder = database_path.parent / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        given = (*ENDS_EARLY.get(path, ()), f"{option.opts[0]}={value}", *arguments)
        try:
            result = diode(*path, *given)
        except Exception as error:  # noqa: BLE001 - a traceback is what is looked for
            said.append(f"{given}: {type(error).__name__}: {error}")
        else:
            if not is_right(option, value, result):
                said.append(f"{given}: {result.code} {result.err[-300:]}")
    assert said == []


def is_right(option: Any, value: str, result: CommandResult) -> bool:
    """Return whether a command did what it was told, or said what is wrong with the option."""
    if result.code in {1, 2} and any(re.search(rf"{name}(?![\w-])", result.err) for name in option.opts):
        return "Traceback" not in result.err
    if result.code in {1, 2} and "absent" in result.err:  # it ended early, as it was made to
        return True
    if option.name in {"database", "config", "spool"} and result.err.startswith(f"error: {value}"):  # the place says it
        return result.code == 1
    shows_it = re.search(rf"(?<![\w.]){re.escape(value)}(?![\w.])", result.err) is not None
    return result.code in {0, 1, 2} and value not in never(option) and not (result.code and shows_it)


def never(option: Any) -> set[str]:
    """Return the values that an option must not take."""
    kind = getattr(option, "type_descriptor", option)
    if getattr(kind, "annotation", None) in {int, float} or getattr(option, "min", None) is not None:
        return NO_NUMBERS
    if option.name == "device_key":  # of devices without one
        return set()
    return NO_OUTPUT if option.name in OUTPUTS else {""}
