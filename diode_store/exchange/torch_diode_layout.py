"""Dataclasses as plain maps and lists, the way upstream torch-diode lays its files out.

A ``Node`` is written with its fields sorted by name. A map whose keys are nodes has them as JSON text. Reading
checks every value's type by the field's annotation, and names the place of a bad one in the file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

import msgpack

from diode_store import checks
from diode_store.errors import RecordError, first_line
from diode_store.exchange.jsonl_checks import type_name

VERSION = 1
"""The only version there is of every upstream type."""

OnBad = Callable[["BadPlace"], None]
"""Called with each entry of a keyed map that cannot be read; the others are read."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SCALARS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class BadPlace:
    """An invalid entry of a file."""

    number: int
    """1-based, among the entries of its map."""
    reason: str
    """Where it is (``hardware 'NVIDIA H100', op 'mm', problem 3``), what is wrong, what to do: in one line."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A type of upstream's files."""

    OLDER_FIELDS: ClassVar[frozenset[str]] = frozenset()
    """Fields of older files that add nothing; ignored."""
    EACH: ClassVar[str] = "entry"
    """What messages call an entry of this node's map or list."""

    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return it as upstream writes it."""
        return {name: _plain(getattr(self, name)) for name in sorted(field.name for field in fields(self))}

    @classmethod
    def from_dict(cls, data: object, *, where: str = "", on_bad: OnBad | None = None) -> Self:
        """Read what ``to_dict`` gave.

        Args:
            data: plain maps and lists.
            where: what to put before the place in a message.
            on_bad: called with each bad entry of a map that is keyed by nodes, instead of raising.

        Raises:
            RecordError: a value is missing, unknown or has the wrong type; the message says where.
        """
        try:
            return cls.read(data, where, on_bad)
        except RecursionError as error:
            raise RecordError(f"{_at(where)}it is nested too deeply; get a whole copy of the file") from error

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> Self:
        """Read it from JSON text, as the keys of maps and the configs of older files are written.

        Raises:
            RecordError: it is invalid.
        """
        return cls.from_dict(json_of(text, where), where=where)

    def serialize(self) -> str:
        """Return it as the JSON text of a file."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def deserialize(cls, text: str | bytes, *, on_bad: OnBad | None = None) -> Self:
        """Read the JSON text of a file; ``on_bad`` as in ``from_dict``.

        Raises:
            RecordError: it holds something else; the message says where.
        """
        return cls.from_dict(json_of(text), on_bad=on_bad)

    def to_msgpack(self) -> bytes:
        """Return it as the bytes of a msgpack file."""
        return bytes(msgpack.packb(self._for_msgpack()))

    @classmethod
    def from_msgpack(cls, data: bytes, *, on_bad: OnBad | None = None) -> Self:
        """Read the bytes of a msgpack file; ``on_bad`` as in ``from_dict``.

        Raises:
            RecordError: they hold something else; the message says where.
        """
        try:
            content = msgpack.unpackb(data, strict_map_key=False)
        except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:  # TypeError: a list as key
            reason = first_line(error)
            raise RecordError(f"it holds no msgpack ({reason}); get a whole copy, or name a JSON file .json") from error
        return cls.from_dict(content, on_bad=on_bad)

    def _for_msgpack(self) -> dict[str, Any]:
        return self.to_dict()

    def as_key(self) -> str:
        """Return it as the key of a map: JSON with the fields in the order of their definition."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def read(cls, data: object, where: str, on_bad: OnBad | None) -> Self:
        """Read it inside a file; ``from_dict`` is for a whole one."""
        if not isinstance(data, dict):
            raise RecordError(f"{_at(where)}expected an object, not {_kind(data)}; {_REMEDY}")
        hints: dict[str, Any] = _hints(cls)  # type: ignore[arg-type]  # mypy: a class is not Hashable
        unknown = sorted(map(str, data.keys() - hints.keys() - cls.OLDER_FIELDS))
        if unknown:
            raise RecordError(f"{_at(where)}unknown fields {checks.shown(unknown)}; remove them")
        required = {field.name for field in fields(cls) if _is_required(field)}
        missing = sorted(required - data.keys())
        if missing:
            raise RecordError(f"{_at(where)}no {', '.join(missing)}; add what is missing or remove the entry")
        given = {name: _value(cls, name, data[name], where, on_bad) for name in hints if name in data}
        made: Self = _made(cls, given, where)
        return made


_REMEDY = "correct or remove it"


def json_of(text: str | bytes, where: str = "") -> Any:
    """Return what JSON text holds.

    Raises:
        RecordError: it is not JSON.
    """
    with contextlib.suppress(AttributeError):
        text = text.decode("utf-8-sig", errors="replace")  # type: ignore[union-attr]
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise RecordError(f"{_at(where)}it is not JSON ({place}: {error.msg}); get a whole copy of it") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{_at(where)}it is not JSON ({first_line(error)}); get a whole copy of it") from error


def joined(where: str, part: str) -> str:
    """Return the place ``part`` inside the place ``where``."""
    return f"{where}, {part}" if where else part


def _at(where: str) -> str:
    return f"{where}: " if where else ""


def _kind(value: object) -> str:
    return "text" if isinstance(value, (str, bytes)) else type_name(value)


@cache
def _hints(kind: type[Node]) -> dict[str, Any]:
    """Return the annotated type of each field."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_required(field: Any) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _made(kind: Any, given: dict[str, Any], where: str) -> Any:
    if given.get("version", VERSION) != VERSION:
        raise RecordError(
            f"{_at(where)}version {checks.shown(given['version'])} is not known, only {VERSION}; upgrade torch-diode"
        )
    try:
        return kind(**given)
    except RecordError as error:
        raise RecordError(f"{_at(where)}{error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Node):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key.as_key() if isinstance(key, Node) else key: _plain(item) for key, item in value.items()}
    return value


def _value(owner: type[Node], name: str, data: object, where: str, on_bad: OnBad | None) -> Any:
    hint = _hints(owner)[name]  # type: ignore[arg-type]  # mypy: a class is not Hashable
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict:
        return _map(owner, arguments, _checked(data, dict, name, where), where, on_bad)
    if origin is list:
        items = _checked(data, list, name, where)
        return [
            _node(arguments[0], item, joined(where, f"{owner.EACH} {i}"), on_bad) for i, item in enumerate(items, 1)
        ]
    if origin is tuple:
        return _numbers(_checked(data, list, name, where), len(arguments), name, where)
    if issubclass(hint, Node):
        return _node(hint, data, where, on_bad)
    return _scalar(hint, data, name, where)


def _node(kind: Any, data: object, where: str, on_bad: OnBad | None) -> Any:
    """Read a node; older files hold configs as JSON text."""
    if isinstance(data, str):
        data = json_of(data, where)
    return kind.read(data, where, on_bad)


def _map(owner: type[Node], kinds: tuple[Any, ...], data: dict[Any, Any], where: str, on_bad: OnBad | None) -> Any:
    key_kind, item_kind = kinds
    if key_kind is not str:
        return _keyed(owner, kinds, data, where, on_bad)
    names = {key: _scalar(str, key, owner.EACH, where) for key in data}
    places = {key: joined(where, f"{owner.EACH} {checks.shown(key)}") for key in data}
    return {names[key]: _node(item_kind, item, places[key], on_bad) for key, item in data.items()}


def _keyed(owner: type[Node], kinds: tuple[Any, ...], data: dict[Any, Any], where: str, on_bad: OnBad | None) -> Any:
    """Read a map whose keys are nodes; a bad entry is reported to ``on_bad`` and left out, if that is given."""
    key_kind, item_kind = kinds
    found: dict[Any, Any] = {}
    for number, (key, item) in enumerate(data.items(), 1):
        place = joined(where, f"{owner.EACH} {number}")
        try:
            node = key_kind.parse(_scalar(str, key, "the key", place), where=place)
            _refuse_second(found, node, place)
            found[node] = _node(item_kind, item, place, None)
        except RecordError as error:
            if on_bad is None:
                raise
            on_bad(BadPlace(number, str(error)))
    return found


def _refuse_second(found: dict[Any, Any], node: Any, place: str) -> None:
    if node in found:
        raise RecordError(f"{place}: it is there twice; merge the two")


def _checked(data: object, kind: type, name: str, where: str) -> Any:
    if not isinstance(data, kind):
        expected = "an object" if kind is dict else "a list"
        raise RecordError(f"{_at(where)}{name} must be {expected}, not {_kind(data)}; {_REMEDY}")
    return data


def _numbers(data: list[Any], count: int, name: str, where: str) -> tuple[int, ...]:
    if len(data) != count or not all(type(item) is int and abs(item) <= checks.INT64 for item in data):
        raise RecordError(f"{_at(where)}{name} must be {count} whole numbers, not {checks.shown(data)}; {_REMEDY}")
    return tuple(data)


def _scalar(kind: Any, data: object, name: str, where: str) -> Any:
    if kind is float and type(data) is int:
        with contextlib.suppress(OverflowError):
            return float(data)
    if type(data) is not kind or not _is_storable(data):
        raise RecordError(f"{_at(where)}{name} must be {_SCALARS[kind]}, not {checks.shown(data)}; {_REMEDY}")
    return data


def _is_storable(data: object) -> bool:
    """Whether msgpack and any database can hold ``data``."""
    if isinstance(data, int):
        return abs(data) <= checks.INT64
    if not isinstance(data, str):
        return True
    return len(data) <= checks.MAX_TEXT and not _UNSTORABLE.search(data)
