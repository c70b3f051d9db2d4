"""Upstream torch-diode's files by their names: whole or not at all, JSON or msgpack by the suffix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from diode_store.errors import ExportError, ImportFileError, RecordError
from diode_store.exchange.files import open_binary
from diode_store.exporting import new_file

if TYPE_CHECKING:
    from diode_store.exchange.torch_diode_layout import Node, OnBad

JSON_SUFFIX = ".json"
MSGPACK_SUFFIX = ".msgpack"
_SUFFIXES = f"the file's suffix says its format; name it {JSON_SUFFIX} or {MSGPACK_SUFFIX}"

_Kind = TypeVar("_Kind", bound="Node")


def read_file(path: Path | str, kind: type[_Kind], *, on_bad: OnBad | None = None) -> _Kind:
    """Read a file of upstream's, whose suffix says whether it is JSON or msgpack.

    Args:
        path: the file; .json or .msgpack.
        kind: what it holds.
        on_bad: told of each problem that cannot be read, and the others are; without it the first one raises.

    Raises:
        ImportFileError: it cannot be read or holds something else; the message says file, place and remedy.
    """
    suffix = Path(path).suffix
    if suffix not in {JSON_SUFFIX, MSGPACK_SUFFIX}:
        raise ImportFileError(f"{path}: {_SUFFIXES}")
    with open_binary(str(path)) as stream:
        try:
            data = stream.read()
        except (OSError, EOFError) as error:
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
    suffix = Path(path).suffix
    if suffix not in {JSON_SUFFIX, MSGPACK_SUFFIX}:
        raise ExportError(f"{path}: {_SUFFIXES}")
    data = content.serialize().encode() if suffix == JSON_SUFFIX else content.to_msgpack()
    with new_file(Path(path), force=True) as beside:
        beside.write_bytes(data)
