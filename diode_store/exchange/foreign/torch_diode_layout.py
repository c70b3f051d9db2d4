"""Decode the objects of upstream torch-diode's files, and name the place of each error."""

from __future__ import annotations

import contextlib
import re
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack

from diode_store.errors import RecordError, first_line
from diode_store.exchange.bounds import unpack_msgpack
from diode_store.exchange.jsonl_checks import type_name
from diode_store.values.checks import INT64, MAX_TEXT, shown

VERSION = 1
"""The only version of every upstream type."""

_T = TypeVar("_T")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_KINDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_REMEDY = "correct or remove it"


def checked(data: object, kind: type[_T], where: str = "") -> _T:
    """Return plain data as a dataclass; the annotations of its fields say their types.

    Raises:
        RecordError: a field is missing, unknown or wrong; the message begins with ``where`` and names the field.
    """
    if not isinstance(data, dict):
        raise RecordError(f"{_begun(where)}expected an object, not {type_name(data)}; {_REMEDY}")
    hints, required = _hints(kind)  # type: ignore[arg-type]  # mypy: a class is not Hashable
    if unknown := sorted(map(str, data.keys() - hints.keys())):
        raise RecordError(f"{_begun(where)}unknown fields {shown(unknown)}; remove them")
    if missing := sorted(required - data.keys()):
        raise RecordError(f"{_begun(where)}no {', '.join(missing)}; add what is missing or remove the entry")
    if data.get("version", VERSION) != VERSION:
        raise RecordError(
            f"{_begun(where)}version {shown(data['version'])} is not known, only {VERSION}; upgrade torch-diode"
        )
    given = {name: _value(hints[name], value, name, where) for name, value in data.items()}
    try:
        return kind(**given)
    except RecordError as error:
        raise RecordError(f"{_begun(where)}{error}") from error


@cache
def _hints(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the type of each field, and the names of the required fields."""
    required = (f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return get_type_hints(kind), frozenset(required)


def _value(hint: Any, data: Any, name: str, where: str) -> Any:
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if is_dataclass(kind):
        return checked(data, cast("Any", kind), where)
    if kind is tuple:
        if not isinstance(data, list) or len(data) != len(arguments) or not all(map(_is_whole, data)):
            raise RecordError(
                f"{_begun(where)}{name} must be {len(arguments)} whole numbers, not {shown(data)}; {_REMEDY}"
            )
        return tuple(data)
    if kind is float and type(data) is int:
        with contextlib.suppress(OverflowError):
            data = float(data)
    if type(data) is not kind or not _is_storable(data):
        said = type_name(data) if kind in {list, dict} else shown(data)
        raise RecordError(f"{_begun(where)}{name} must be {_KINDS[kind]}, not {said}; {_REMEDY}")
    if kind is list:
        return [checked(item, arguments[0], inside(where, f"config {i}")) for i, item in enumerate(data, 1)]
    return data


def _is_whole(value: object) -> bool:
    return type(value) is int and abs(value) <= INT64


def _is_storable(data: Any) -> bool:
    """Return whether msgpack and any database can hold ``data``."""
    if isinstance(data, str):
        return len(data) <= MAX_TEXT and not _UNSTORABLE.search(data)
    return type(data) is not int or _is_whole(data)


def msgpack_of(data: bytes) -> Any:
    """Return the content of msgpack bytes.

    Raises:
        RecordError: they are not msgpack.
    """
    try:
        return unpack_msgpack(data)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:  # TypeError: a list as key
        reason = first_line(error)
    raise RecordError(f"it holds no msgpack ({reason}); get a whole copy, or name a JSON file .json")


def inside(where: str, part: str) -> str:
    """Return the place ``part`` inside the place ``where``."""
    return f"{where}, {part}" if where else part


def _begun(where: str) -> str:
    return f"{where}: " if where else ""
