"""The commands that pages show: whether they exist and take the options that they are shown with."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import entry_points
from typing import Any

from typer.main import get_command

PROGRAMS = {"diode", "diode-collect", "diode-ingest", "diode-train"}


def is_command(text: str) -> bool:
    """Whether a piece of a page is one of our commands."""
    return text.partition(" ")[0] in PROGRAMS


def commands(page: str) -> list[list[str]]:
    """Return the words of each of our commands in a page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [_first_command(shlex.split(line, comments=True)) for line in lines]
    return [words for words in found if words and words[0] in PROGRAMS]


def _first_command(words: list[str]) -> list[str]:
    """Return the words before the first pipe."""
    return words[: words.index("|")] if "|" in words else words


def unknown_options(words: list[str]) -> set[str]:
    """Return the options that a command does not take; a command that does not exist is an error."""
    group = "diode.commands" if words[0] == "diode" else None
    name = words[1] if group else words[0].removeprefix("diode-")
    (found,) = entry_points(group="diode.commands", name=name)
    command: Any = get_command(found.load())
    rest = words[2:] if group else words[1:]
    if rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest[0]]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in rest if word.startswith("-") and word != "-"} - options
