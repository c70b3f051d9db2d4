"""Read and write upstream torch-diode's files, in JSON or msgpack by the suffix, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgpack

from diode_store.errors import ExportError, ImportFileError, RecordError
from diode_store.exchange.bounds import json_of, read_whole
from diode_store.exchange.context import BadProblem
from diode_store.exchange.exporting import new_file
from diode_store.exchange.foreign.torch_diode import measurements_of
from diode_store.exchange.foreign.torch_diode_layout import msgpack_of
from diode_store.exchange.foreign.torch_diode_types import Dataset, Table
from diode_store.exchange.formats import refuse_foreign
from diode_store.exchange.inputs import open_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.errors import DiodeError
    from diode_store.exchange.context import BadLine, ImportContext
    from diode_store.exchange.foreign.torch_diode_types import OnBad
    from diode_store.records import Measurement

JSON_SUFFIX = ".json"
MSGPACK_SUFFIX = ".msgpack"

_BOM = b"\xef\xbb\xbf"
_Kind = TypeVar("_Kind", Dataset, Table)


def known_suffix(path: Path | str, error: type[DiodeError] = ExportError) -> str:
    """Return the suffix of ``path``, which sets its format.

    Raises:
        DiodeError: ``error``, for another suffix than .json and .msgpack.
    """
    suffix = Path(path).suffix
    if suffix not in {JSON_SUFFIX, MSGPACK_SUFFIX}:
        raise error(f"{path}: the file's suffix sets its format; name it {JSON_SUFFIX} or {MSGPACK_SUFFIX}")
    return suffix


def read_file(path: Path | str, kind: type[_Kind]) -> _Kind:
    """Read one of upstream's files; its suffix says whether it is JSON or msgpack.

    Args:
        path: the file; .json or .msgpack.
        kind: the file's content, ``Dataset`` or ``Table``.

    Raises:
        ImportFileError: the file cannot be read or holds something else; the message names file, place and remedy.
    """
    suffix = known_suffix(path, ImportFileError)
    with open_binary(str(path)) as stream:
        if issubclass(kind, Dataset):
            refuse_foreign(str(path), stream, by_lines=False)
        try:
            return parsed(read_whole(stream), kind, is_json=suffix == JSON_SUFFIX)
        except RecordError as error:
            raise ImportFileError(f"{path}: {error}") from error


def parsed(data: bytes, kind: type[_Kind], *, is_json: bool, on_bad: OnBad | None = None) -> _Kind:
    """Return the content of one of upstream's files; ``on_bad`` as in ``ByProblem.from_dict``.

    Raises:
        RecordError: ``data`` holds something else; the message names the place.
    """
    return kind.from_dict(json_of(data) if is_json else msgpack_of(data), on_bad=on_bad)


def read_stream(stream: IO[bytes], context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield a measurement of each problem of a data set, or what is wrong with the problem.

    The first bytes show whether the data set is JSON or msgpack.
    """
    bad: list[BadProblem] = []
    try:
        data = read_whole(stream)
        dataset = parsed(data, Dataset, is_json=data.lstrip().startswith((b"{", _BOM)), on_bad=bad.append)
    except RecordError as error:
        yield BadProblem(1, str(error))
        return
    yield from bad
    yield from measurements_of(dataset, context)


def packed(content: Dataset | Table, *, as_msgpack: bool) -> bytes:
    """Return the bytes of a file, JSON or msgpack."""
    plain = content.to_dict()
    return bytes(msgpack.packb(plain)) if as_msgpack else json.dumps(plain, indent=2).encode()


def write_file(path: Path | str, content: Dataset | Table) -> None:
    """Write one of upstream's files, whole or not at all, replacing what is there.

    Raises:
        ExportError: its suffix is neither .json nor .msgpack, or it cannot be written.
    """
    suffix = known_suffix(path)
    with new_file(Path(path), force=True) as beside:
        beside.write_bytes(packed(content, as_msgpack=suffix == MSGPACK_SUFFIX))
