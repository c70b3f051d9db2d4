"""Upstream torch-diode's files by their names: whole or not at all, JSON or msgpack by the suffix."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from diode_store.errors import ExportError, ImportFileError, RecordError
from diode_store.exchange.files import open_binary
from diode_store.exporting import new_file

if TYPE_CHECKING:
    from diode_store.errors import DiodeError
    from diode_store.exchange.torch_diode_layout import Node, OnBad

JSON_SUFFIX = ".json"
MSGPACK_SUFFIX = ".msgpack"

_Kind = TypeVar("_Kind", bound="Node")


def known_suffix(path: Path | str, error: type[DiodeError] = ExportError) -> str:
    """Return the suffix of ``path``, which says its format.

    Raises:
        DiodeError: ``error``, for another suffix than .json and .msgpack.
    """
    suffix = Path(path).suffix
    if suffix not in {JSON_SUFFIX, MSGPACK_SUFFIX}:
        raise error(f"{path}: the file's suffix says its format; name it {JSON_SUFFIX} or {MSGPACK_SUFFIX}")
    return suffix


def read_file(path: Path | str, kind: type[_Kind], *, on_bad: OnBad | None = None) -> _Kind:
    """Read a file of upstream's, whose suffix says whether it is JSON or msgpack.

    Args:
        path: the file; .json or .msgpack.
        kind: what it holds.
        on_bad: told of each problem that cannot be read, and the others are; without it the first one raises.

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


def write_file(path: Path | str, content: Node) -> None:
    """Write a file of upstream's, whole or not at all, in the place of what is there.

    Raises:
        ExportError: its suffix is neither .json nor .msgpack, or it cannot be written.
    """
    suffix = known_suffix(path)
    data = content.serialize().encode() if suffix == JSON_SUFFIX else content.to_msgpack()
    with new_file(Path(path), force=True) as beside:
        beside.write_bytes(data)
