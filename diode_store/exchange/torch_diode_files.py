"""Reads and writes upstream torch-diode's files, JSON or msgpack by the suffix, whole or not at all."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from diode_store.errors import ExportError, ImportFileError, RecordError
from diode_store.exchange.exporting import new_file
from diode_store.exchange.inputs import open_binary
from diode_store.exchange.torch_diode import BadProblem, measurements_of
from diode_store.exchange.torch_diode_types import Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.errors import DiodeError
    from diode_store.exchange.context import BadLine, ImportContext
    from diode_store.exchange.torch_diode_layout import BadPlace, Node, OnBad
    from diode_store.records import Measurement

JSON_SUFFIX = ".json"
MSGPACK_SUFFIX = ".msgpack"

_BOM = b"\xef\xbb\xbf"
_Kind = TypeVar("_Kind", bound="Node")


def known_suffix(path: Path | str, error: type[DiodeError] = ExportError) -> str:
    """Return the suffix of ``path``, which says its format.

    Raises:
        DiodeError: ``error``, for another suffix than .json and .msgpack.
    """
    suffix = Path(path).suffix
    if suffix not in {JSON_SUFFIX, MSGPACK_SUFFIX}:
        raise error(f"{path}: the file's suffix sets its format; name it {JSON_SUFFIX} or {MSGPACK_SUFFIX}")
    return suffix


def read_file(path: Path | str, kind: type[_Kind], *, on_bad: OnBad | None = None) -> _Kind:
    """Read a file of upstream's, whose suffix says whether it is JSON or msgpack.

    Args:
        path: the file; .json or .msgpack.
        kind: what it holds.
        on_bad: called with each problem that cannot be read, and the others are read; without it the first one raises.

    Raises:
        ImportFileError: it cannot be read or holds something else; the message says file, place and remedy.
    """
    suffix = known_suffix(path, ImportFileError)
    with open_binary(str(path)) as stream:
        try:
            data = stream.read()
        except (OSError, EOFError, zlib.error) as error:
            raise ImportFileError(f"{path} cannot be read: {error}; get a whole copy of it") from error
    try:
        read: Any = kind.deserialize if suffix == JSON_SUFFIX else kind.from_msgpack
        found: _Kind = read(data, on_bad=on_bad)
    except RecordError as error:
        raise ImportFileError(f"{path}: {error}") from error
    return found


def read_stream(stream: IO[bytes], context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield a measurement of each problem of a data set, or what is wrong with the problem.

    Its first bytes show whether it is JSON or msgpack.
    """
    bad: list[BadPlace] = []
    try:
        data = stream.read()
        is_json = data.lstrip().startswith((b"{", _BOM))
        dataset = (Dataset.deserialize if is_json else Dataset.from_msgpack)(data, on_bad=bad.append)
    except (OSError, EOFError, zlib.error) as error:
        yield BadProblem(1, f"it cannot be read: {error}; get a whole copy of it")
        return
    except RecordError as error:
        yield BadProblem(1, str(error))
        return
    yield from (BadProblem(place.number, place.reason) for place in bad)
    yield from measurements_of(dataset, context)


def write_stream(stream: IO[bytes], content: Node, *, as_msgpack: bool) -> None:
    """Write a type of upstream's as JSON or msgpack."""
    stream.write(content.to_msgpack() if as_msgpack else content.serialize().encode())


def write_file(path: Path | str, content: Node) -> None:
    """Write a file of upstream's, whole or not at all, replacing what is there.

    Raises:
        ExportError: its suffix is neither .json nor .msgpack, or it cannot be written.
    """
    suffix = known_suffix(path)
    with new_file(Path(path), force=True) as beside, beside.open("wb") as stream:
        write_stream(stream, content, as_msgpack=suffix == MSGPACK_SUFFIX)
