"""Give a command the fields of a dataclass as options, or options that take several words."""

from __future__ import annotations

import functools
import inspect
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, get_type_hints

from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


def takes_options(
    kind: type[Any], parameter_name: str = "options"
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a Typer command the fields of the dataclass ``kind`` as its options.

    The command's parameter ``parameter_name`` gets an instance of ``kind``. The help lists the fields in its place.
    Typer reads each field's annotation, which also gives the default of a field that has none.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(kind, include_extras=True)
        own = get_type_hints(command, include_extras=True)
        own.pop("return", None)
        names = [field.name for field in fields(kind)]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = kind(**{name: given.pop(name) for name in names})
            command(**{parameter_name: options}, **given)

        parameters = []
        only = inspect.Parameter.KEYWORD_ONLY
        for name, parameter in inspect.signature(command).parameters.items():
            if name != parameter_name:
                parameters.append(parameter.replace(annotation=own[name], kind=only))
                continue
            for field in fields(kind):
                default = inspect.Parameter.empty if field.default is MISSING else field.default
                parameters.append(inspect.Parameter(field.name, only, default=default, annotation=hints[field.name]))
        del run.__wrapped__  # else Typer would read the signature of ``command``
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def takes_several(*options: str) -> type[TyperCommand]:
    """Return the class of a command whose list ``options`` take several words at once: ``--kinds a b c``.

    The words end at the next option. Typer sees ``--kinds a --kinds b --kinds c``, which people may type too.
    """

    class SeveralValues(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, list(_repeated(args, options)))

    return SeveralValues


def _repeated(args: Iterable[str], options: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments, with the name of an option that takes several words before each of its words."""
    current, is_named = None, False
    for word in args:
        if word.startswith("-"):
            current = word if word in options else None
            is_named = current is not None
        elif current is not None and not is_named:
            yield current
        else:
            is_named = False
        yield word


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Return the options that have a value, as words of a command line; all values of a list follow one name."""
    words: list[str] = []
    for option, value in options.items():
        if value is True:
            words.append(option)
        elif isinstance(value, (list, tuple)):
            words += [option, *map(str, value)] if value else []
        elif value is not None and value is not False:
            words += [option, str(value)]
    return words
