"""Guard a command's options: refuse impossible values, and name the option in an error message."""

from __future__ import annotations

import math
import os
import re
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_MAY_BE_EMPTY = frozenset({"--device-key"})
"""Options that may be empty: a lookup table may be for devices without a key."""
_KNOWN_BY_PLACE = frozenset({"--database", "--config", "--spool"})
"""Options whose errors begin with the place itself, which may also come from the environment."""
_LONGEST_WORD, _FEW_SIGNS = 40, 5
"""Letters of a word, or other characters, up to which an unquoted value may be a word of the message itself."""
_LONGEST_NAME = 255
"""Bytes in the name of a file or folder on the file systems of Linux."""


def guard(command: Any) -> None:
    """Check the options of ``command`` before it runs, and name them in the errors that show a value of theirs."""
    parse, invoke = command.parse_args, command.invoke

    def parsed(context: typer.Context, arguments: list[str]) -> Any:
        for option, name in ((each, name) for each in _options(command) for name in each.opts):
            for text in _values_of(name, arguments):
                if not text.strip() and name not in _MAY_BE_EMPTY:
                    raise typer.BadParameter("it is empty", ctx=context, param_hint=f"'{name}'")
                # Before the check of its range, whose message about limits would not fit nan.
                if _takes_float(option) and not _is_finite(text):
                    raise typer.BadParameter(f"{text} is not a finite number", ctx=context, param_hint=f"'{name}'")
        return parse(context, arguments)

    def invoked(context: typer.Context) -> Any:
        typed = list(_typed(context))
        for name, value in typed:
            if (why := _unusable(value)) is not None:
                raise typer.BadParameter(why, ctx=context, param_hint=f"'{name}'")
        try:
            return invoke(context)
        except (DiodeError, typer.BadParameter) as error:
            _name_option(error, typed)
            raise

    command.parse_args, command.invoke = parsed, invoked


def _unusable(value: object) -> str | None:
    """Return why no option takes a value; None if one may."""
    if isinstance(value, Path) and max(map(len, map(os.fsencode, value.parts)), default=0) > _LONGEST_NAME:
        return f"a name in this path is longer than {_LONGEST_NAME} bytes"
    return None


def _name_option(error: DiodeError | typer.BadParameter, typed: Sequence[tuple[str, object]]) -> None:
    """Name the option in an error that shows the value of one and names none."""
    message = error.message if isinstance(error, typer.BadParameter) else str(error)
    if any(re.search(rf"{name}(?![\w-])", message) for name, _ in typed):
        return
    if message.startswith(tuple(str(value) for name, value in typed if name in _KNOWN_BY_PLACE)):
        return
    # Typer has checked a choice from a list, so it is not the mistake.
    shown = {name: str(v) for name, v in typed if not isinstance(v, Enum) and _shows(message, v)}
    longest = max(shown.values(), key=len, default="")
    shown = {name: value for name, value in shown.items() if value == longest or value not in longest}
    if len(shown) != 1:  # several options: their combination is the mistake
        return
    ((name, value),) = shown.items()
    if isinstance(error, DiodeError):
        error.args = (f"{name}{'' if message.startswith(value) else ':'} {message}", *error.args[1:])
    elif error.param is None and error.param_hint is None:
        error.param_hint = f"'{name}'"


def _shows(message: str, given: object) -> bool:
    """Return whether a message shows a value: in quotes, or bare if it is a path, an address or no plain word.

    An unquoted word or small number may as well belong to the message itself.
    """
    value = str(given)
    if isinstance(given, Path) and message.startswith((f"{value}: ", f"{value} ")):
        return True
    if any(quoted in message for quoted in (f"'{value}'", f'"{value}"', repr(value))):
        return True
    most = _LONGEST_WORD if value.isalpha() else _FEW_SIGNS
    is_no_word = len(value) > most or any(sign in value for sign in "/.~:")
    return is_no_word and re.search(rf"(?<![\w./-]){re.escape(value)}(?![\w./-])", message) is not None


def _takes_float(option: Any) -> bool:
    kind = getattr(option, "type_descriptor", None) or option.type  # Typer before 0.27 has Click's types
    return getattr(kind, "annotation", None) is float or str(getattr(kind, "name", "")).startswith("float")


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:  # not a number, which the parser reports
        return True


def _options(command: Any) -> Iterator[Any]:
    """Yield the options that take a value."""
    for each in command.params:
        if each.param_type_name == "option" and not each.is_flag:
            yield each


def _values_of(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield the values that an option is given."""
    for before, value in pairwise(["", *arguments]):
        if before == name:
            yield value
        elif value.startswith(f"{name}="):
            yield value[len(name) + 1 :]


def _typed(context: typer.Context) -> Iterator[tuple[str, object]]:
    """Yield the typed options with their values, one pair for each value."""
    for option in _options(context.command):
        source = context.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            value = context.params.get(option.name)
            for each in value if isinstance(value, (list, tuple)) else [value]:
                yield option.opts[0], each
