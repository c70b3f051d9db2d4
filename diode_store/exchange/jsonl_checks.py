"""Checks of a JSON line's fields; each message has the place and the remedy."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from diode_store.candidates.names import DTYPES
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.values.checks import shown
from diode_store.values.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.records import Problem

_MAX_SIZE = 2**62
_LEAST_NUMBER, _MOST_NUMBER = -(2**63), 2**64 - 1
# PyTorch's names, including future 8-bit floats.
_DTYPE = re.compile(r"bfloat16|float(4|8|16|32|64)(_\w+)?|u?int([1-8]|16|32|64)|complex(32|64|128)|bool")
# Inductor pads a dimension to a multiple of this many elements and times the padded product.
_PADDING = {"float32": 4, "float64": 4}
_DEFAULT_PADDING = 8


def require(row: Mapping[str, Any], names: Iterable[str], where: str = "") -> None:
    """Raise RecordError with the names missing in ``row``, if any."""
    missing = [where + name for name in names if name not in row]
    if missing:
        raise RecordError(f"no {', '.join(missing)}; add what is missing or remove the line")


def typed(value: object, kind: type, where: str, expected: str) -> Any:
    """Return ``value`` if it is a ``kind``; otherwise raise RecordError, which calls that kind ``expected``."""
    if not isinstance(value, kind):
        raise RecordError(f"{where} must be {expected}, not {type_name(value)}")
    return value


def type_name(value: object) -> str:
    """Return JSON's name for the type of ``value``."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", type(None): "null"}
    return names.get(type(value), "a number")


def unstorable(row: Mapping[str, Any]) -> str | None:
    """Return which value of ``row`` no record can store, and why; None if records can store all values."""
    # Not recursive: a line may nest deeper than Python's calls.
    left: list[tuple[str, Any]] = [("", row)]
    while left:
        where, value = left.pop()
        if isinstance(value, dict):
            broken = next((name for name in value if not _is_unicode(name)), None)
            if broken is not None:
                return f"a name in {where or 'the line'} must be whole Unicode characters, not {shown(broken)}"
            left += [(f"{where}.{name}" if where else str(name), item) for name, item in value.items()]
        elif isinstance(value, list):
            left += [(f"{where}[{position}]", item) for position, item in enumerate(value)]
        elif not _is_unicode(value):
            return f"{where} must be text of whole Unicode characters, not {shown(value)}"
        elif type(value) is int and not _LEAST_NUMBER <= value <= _MOST_NUMBER:
            return f"{where} must be a number of at most 64 bits, not {shown(value)}"
    return None


def _is_unicode(value: object) -> bool:
    """Return whether ``value`` can be written: JSON may have half of a surrogate pair, which is no character."""
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(where: str, value: object) -> bytes:
    """Return the 16 bytes spelled by ``value`` in hexadecimal; raise RecordError for any other value."""
    try:
        content = bytes.fromhex(typed(value, str, where, f"{2 * KEY_BYTES} hexadecimal digits"))
    except ValueError:
        content = b""
    if len(content) != KEY_BYTES:
        raise RecordError(f"{where} must be {2 * KEY_BYTES} hexadecimal digits, not {value!r}")
    return content


def time_with_zone(where: str, value: object) -> str:
    """Return ``value`` if it is an ISO 8601 time with its zone; otherwise raise RecordError."""
    text = typed(value, str, where, "an ISO 8601 time")
    try:
        zone = datetime.fromisoformat(text).tzinfo
    except ValueError as error:
        raise RecordError(f"{where} must be an ISO 8601 time, not {text!r}") from error
    if zone is None:
        raise RecordError(f"{where} must name its time zone, as in {text}Z for UTC")
    return str(text)


def problem_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the problem of ``row`` in the wire format.

    Raises:
        RecordError: the op is no text, or the inputs are no list of {dtype, size, stride}.
    """
    op = typed(row["op"], str, "op", "text")
    scalars = typed(row.get("scalars") or {}, dict, "scalars", "an object")
    specs = [_input(f"inputs[{i}]", spec) for i, spec in enumerate(typed(row["inputs"], list, "inputs", "a list"))]
    return {"op": op, "inputs": specs, "scalars": list(scalars.items()), "extra": row.get("problem_extra") or {}}


def _input(where: str, spec: object) -> list[Any]:
    fields = typed(spec, dict, where, "an object")
    require(fields, ("dtype", "size", "stride"), f"{where}.")
    dtype = known_dtype(f"{where}.dtype", typed(fields["dtype"], str, f"{where}.dtype", "text such as bfloat16"))
    for name in ("size", "stride"):
        numbers = typed(fields[name], list, f"{where}.{name}", "a list of whole numbers")
        if any(type(n) is not int or not 0 <= n <= _MAX_SIZE for n in numbers):
            raise RecordError(f"{where}.{name} must be a list of whole numbers, not {numbers!r}")
    return [dtype, fields["size"], fields["stride"]]


def known_dtype(where: str, name: str) -> str:
    """Return ``name`` if it is PyTorch's name of a dtype; otherwise raise RecordError."""
    if not _DTYPE.fullmatch(name):
        raise RecordError(f"{where}: unknown dtype {shown(name)}; write PyTorch's name, such as bfloat16 or float32")
    return name


def check_shape(row: Mapping[str, Any], problem: Problem) -> dict[str, int]:
    """Compare the row's own sizes, dtype, layout and dimensions with its inputs.

    Returns:
        The sizes before Inductor's padding, by letter; empty without padding, or for an unknown op.

    Raises:
        RecordError: the row contradicts its inputs.
    """
    if not problem.is_known:
        return {}
    shape = problem.shape
    dtype = typed(row["dtype"], str, "dtype", "text")
    if known_dtype("dtype", DTYPES.get(dtype, dtype)) != shape.dtype:
        raise RecordError(f"dtype {dtype!r} contradicts the inputs, which are {shape.dtype}")
    padding = _PADDING.get(shape.dtype, _DEFAULT_PADDING)
    asked = {}
    for letter in "BMNK":
        stated, measured = row[letter], getattr(shape, letter.lower())
        if type(stated) is int and stated == measured:
            continue
        if type(stated) is not int or letter == "B" or stated < 1 or -(-stated // padding) * padding != measured:
            raise RecordError(f"{letter} = {stated!r} contradicts the inputs, which make it {measured}")
        asked[letter] = stated
    _check_layout(row["layout"], problem)
    check_dimensions(row.get("dimensions"), problem)
    return asked


def check_dimensions(stated: object, problem: Problem) -> None:
    """Compare stated dimensions with those that follow from the inputs; None states nothing.

    Raises:
        RecordError: they differ.
    """
    found = dict(problem.shape.dimensions)
    if stated is not None and stated != found:
        raise RecordError(f"dimensions {shown(stated)} contradict the inputs, which make them {shown(found)}")


def _check_layout(layout: object, problem: Problem) -> None:
    first, second, _ = OPS[problem.op].operands
    if not OPS[problem.op].has_matrices:
        allowed = list(problem.shape.layout)
    else:
        allowed = [_letters(problem.inputs[i].size, problem.inputs[i].stride) for i in (first, second)]
    letters = typed(layout, str, "layout", "two letters")
    if len(letters) != len(allowed) or any(a not in b for a, b in zip(letters, allowed, strict=True)):
        raise RecordError(f"layout {layout!r} contradicts the inputs' strides, which make it {problem.shape.layout!r}")


def _letters(size: tuple[int, ...], stride: tuple[int, ...]) -> str:
    """Return the letters that fit; a matrix with a dimension of 1 is row-major and transposed at once."""
    if 1 in size[-2:]:
        return "nts"
    return (("n" if stride[-1] == 1 else "") + ("t" if stride[-2] == 1 else "")) or "s"
