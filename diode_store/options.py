"""Options of a command declared once, as the fields of a dataclass."""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable


def takes_options(kind: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a Typer command the fields of the dataclass ``kind`` as its options.

    The command has a parameter ``options``, which gets one instance; in the help the fields stand in its place. A
    field's annotation is what Typer reads; a field without a default takes its default from there.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(kind, include_extras=True)
        own = get_type_hints(command, include_extras=True)
        own.pop("return", None)
        names = [field.name for field in fields(kind)]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = kind(**{name: given.pop(name) for name in names})
            command(options=options, **given)

        parameters = []
        only = inspect.Parameter.KEYWORD_ONLY
        for name, parameter in inspect.signature(command).parameters.items():
            if name != "options":
                parameters.append(parameter.replace(annotation=own[name], kind=only))
                continue
            for field in fields(kind):
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                parameters.append(inspect.Parameter(field.name, only, default=default, annotation=hints[field.name]))
        del run.__wrapped__  # Typer would look behind it
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
