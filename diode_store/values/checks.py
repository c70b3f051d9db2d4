"""Checks of single values from outside: from bytes, a file or another process.

Every message is one short line: a hostile value may be megabytes long or nested a thousand deep.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

Check = Callable[[str, object], Any]
"""Takes a value's name and the value; returns the value or raises ``RecordError``."""
_M = TypeVar("_M")

MAX_TEXT = 4096
"""Limit on the characters of a name, a path or any other text field."""
_MOST_SHOWN = 100
MAX_DEPTH = 16
"""Deepest nesting of lists and maps inside ``extra``."""
INT32 = 2**31 - 1
INT64 = 2**63 - 1
MAX_MICROSECONDS = 1e15
"""31 years; a longer time means a wrong unit or a wrong clock."""


def shown(value: object) -> str:
    """Return the repr of ``value``, shortened for a message."""
    whole = reprlib.repr(value)
    return whole if len(whole) <= _MOST_SHOWN else f"{whole[:_MOST_SHOWN]}..."


def text(what: str, value: object) -> str:
    """Return ``value`` if it is text that any database can hold.

    Raises:
        RecordError: ``value`` is something else. The message begins with ``what``, as in every check here.
    """
    if not isinstance(value, str):
        raise RecordError(f"{what} must be text, not {shown(value)}")
    if len(value) > MAX_TEXT or "\0" in value:
        raise RecordError(f"{what} must be text of at most {MAX_TEXT} characters without NUL")
    return value


def integer(what: str, value: object, *, least: int = -INT64 - 1, most: int = INT64) -> int:
    """Return ``value`` if it is a whole number from ``least`` to ``most``.

    Raises:
        RecordError: ``value`` is something else.
    """
    if type(value) is not int or not least <= value <= most:
        raise RecordError(f"{what} must be a whole number from {least} to {most}, not {shown(value)}")
    return value


def number(what: str, value: object, *, least: float, most: float) -> float:
    """Return ``value`` if it is a number from ``least`` to ``most``.

    Raises:
        RecordError: ``value`` is something else.
    """
    if type(value) not in (float, int) or not least <= value <= most:  # type: ignore[operator] # just checked
        raise RecordError(f"{what} must be a number from {least:g} to {most:g}, not {shown(value)}")
    return value  # type: ignore[return-value] # as above


def flag(what: str, value: object) -> bool:
    """Return ``value`` if it is true or false.

    Raises:
        RecordError: ``value`` is something else.
    """
    if not isinstance(value, bool):
        raise RecordError(f"{what} must be true or false, not {shown(value)}")
    return value


def scalar(what: str, value: object) -> bool | int | float | str:
    """Return ``value`` if it is a finite number, text, true or false.

    Raises:
        RecordError: ``value`` is something else.
    """
    if isinstance(value, str):
        return text(what, value)
    if not isinstance(value, (bool, int, float)) or (isinstance(value, float) and not math.isfinite(value)):
        raise RecordError(f"{what} must be a finite number, text or true/false, not {shown(value)}")
    return value


def microseconds(what: str, value: object) -> float:
    """Return ``value`` if it is a time: a finite, positive number.

    Raises:
        RecordError: ``value`` is something else, or so large that its unit must be wrong.
    """
    if type(value) in (float, int) and MAX_MICROSECONDS <= value < math.inf:  # type: ignore[operator] # just checked
        raise RecordError(
            f"{what} must be a finite, positive number of microseconds below {MAX_MICROSECONDS:.0e} (31 years), "
            f"not {shown(value)}; check its unit"
        )
    if type(value) not in (float, int) or not 0 < value < MAX_MICROSECONDS:  # type: ignore[operator] # as above
        raise RecordError(f"{what} must be a finite, positive number of microseconds, not {shown(value)}")
    return value  # type: ignore[return-value] # as above


def json_map(what: str, value: object) -> dict[str, Any]:
    """Return a map of JSON values: tuples become lists, bytes become hex text.

    Raises:
        RecordError: ``value`` is no map or is nested too deeply, a key is not text, or a number is not finite.
    """
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be a map, not {shown(value)}")
    return {_key(what, name): _json(f"{what}.{shown(name)}", item, 1) for name, item in value.items()}


def fields(where: str, content: object, wanted: Mapping[str, Check]) -> dict[str, Any]:
    """Return the wanted values of a map that are present and not None, each checked.

    Raises:
        RecordError: ``content`` is no map, or a value fails its check.
    """
    if not isinstance(content, dict):
        raise RecordError(f"{where} must be a map, not {shown(content)}")
    return {n: check(f"{where}.{n}", content[n]) for n, check in wanted.items() if content.get(n) is not None}


def require(what: str, content: Container[str], names: Iterable[str]) -> None:
    """Check that all ``names`` are present.

    Raises:
        RecordError: one is missing.
    """
    for name in names:
        if name not in content:
            raise RecordError(f"{what} has no {name}")


def array(what: str, value: object, length: int | None = None) -> tuple[Any, ...]:
    """Return ``value`` if it is a tuple (a decoded array), of length ``length`` if given.

    Raises:
        RecordError: ``value`` is something else.
    """
    if not isinstance(value, tuple):
        raise RecordError(f"{what} must be an array, not {shown(value)}")
    if length is not None and len(value) != length:
        raise RecordError(f"{what} must hold {length} values, not {len(value)}")
    return value


def member(what: str, members: Mapping[str, _M], value: object) -> _M:
    """Return the member that ``value`` names.

    Raises:
        RecordError: ``value`` names none of ``members``.
    """
    if not isinstance(value, str) or value not in members:
        raise RecordError(f"{what} must be one of {', '.join(members)}, not {shown(value)}")
    return members[value]


def extra_fields(content: dict[str, Any], known: Container[str]) -> dict[str, Any]:
    """Return a map's ``extra``, together with the keys that this version does not know.

    Raises:
        RecordError: a value has no JSON representation.
    """
    unknown = {name: value for name, value in content.items() if name not in known and name != "extra"}
    return json_map("extra", content.get("extra") or {}) | json_map("a field", unknown)


def _json(what: str, value: object, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (str, float)):
        return scalar(what, value) if isinstance(value, float) else value
    if isinstance(value, bytes):
        return value.hex()
    if depth >= MAX_DEPTH:
        raise RecordError(f"{what} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, (list, tuple)):
        return [_json(what, item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_key(what, name): _json(what, item, depth + 1) for name, item in value.items()}
    raise RecordError(f"{what} must hold JSON values, not {type(value).__name__}")


def _key(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise RecordError(f"{what} must have text for keys, not {shown(name)}")
    return name


def other_content(uid: bytes) -> str:
    """Return the reason to refuse a record that has the uid of another record."""
    return f"uid {uid.hex()}: another record in the warehouse has this uid"
