"""Files that are small on disk and large in memory, made without taking that memory here."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import TYPE_CHECKING

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq

from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BLOCK = 2**20


def gzipped(path: Path, start: bytes, block: bytes, size: int, end: bytes = b"") -> Path:
    """Write ``start``, then ``size`` bytes of whole ``block``s, then ``end``, compressed."""
    block *= max(1, _BLOCK // len(block))
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(-(-size // len(block))):
            file.write(block)
        file.write(end)
    return path


def one_line(path: Path, size: int) -> Path:
    """One line of jsonl without an end."""
    return gzipped(path, b'{"op": "', b"x", size)


def many_values(path: Path, size: int) -> Path:
    """One line of jsonl of small values."""
    return gzipped(path, b'{"op": [', b"{},", size, b"0]}\n")


def many_bad_lines(path: Path, size: int) -> Path:
    """Lines of jsonl that are no measurements."""
    return gzipped(path, b"", b'{"op": 1}\n', size)


def t4(path: Path, size: int) -> Path:
    """A T4 file of empty results."""
    return gzipped(path, b'{"results":[', b"[],", size, b'0],"schema_version":"1.0.0"}')


def dataset(path: Path, size: int) -> Path:
    """One of upstream's data sets, in JSON."""
    return gzipped(path, b'{"hardware":{"a":{"x":[', b"[],", size, b"0]}}}")


def dataset_msgpack(path: Path, size: int) -> Path:
    """The same in msgpack, whose list claims what it has."""
    head = b"\x81\xa8hardware\x81\xa1a\xdd" + (-(-size // _BLOCK) * _BLOCK).to_bytes(4)
    return gzipped(path, head, b"\x90", size)


def claiming_msgpack(path: Path, size: int) -> Path:
    """Lists inside lists, each of which claims more elements than follow."""
    return gzipped(path, b"\x81\xa8hardware\x81\xa1a" + (b"\xdd" + (2**24).to_bytes(4)) * 400, b"\x00", size)


def records(path: Path, size: int) -> Path:
    """One record after another that is no measurement."""
    return gzipped(path, b"", b"\x81\xa1v\x01", size)


def long_record(path: Path, size: int) -> Path:
    """A segment of one record of many small values."""
    count = min(size, 60 * _BLOCK) // 2 // 90_000
    inner = b"\xdd" + (90_000).to_bytes(4) + b"\x91\x00" * 90_000
    packed = msgpack.Packer()
    record = packed.pack_map_header(2) + b"\xa1v\x01\xa5extra" + packed.pack_array_header(count) + inner * count
    frame = frame_to_bytes(bytes(16), zlib.compress(record, 9))
    path.write_bytes(Header(bytes(16), 0, compressed=True).to_bytes() + frame + end_to_bytes(1))
    return path


def parquet(path: Path, size: int) -> Path:
    """A Parquet file whose rows repeat one long text."""
    from diode_store.exchange.parquet import COLUMNS, INT, REQUIRED

    rows = 20_000
    text = "x" * (size // rows)
    columns = {
        name: pa.array([1] * rows)
        if COLUMNS[name] is INT
        else pa.array([1.0] * rows)
        if name == "runtime_us"
        else pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
        if name == "inputs"
        else pa.array(["x"] * rows)
        for name in REQUIRED
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    path.write_bytes(buffer.getvalue())
    return path


HOSTILE: dict[str, Callable[[Path, int], Path]] = {
    "line.jsonl.gz": one_line,
    "values.jsonl.gz": many_values,
    "bad.jsonl.gz": many_bad_lines,
    "t4.json.gz": t4,
    "dataset.json.gz": dataset,
    "dataset.msgpack.gz": dataset_msgpack,
    "claiming.msgpack.gz": claiming_msgpack,
    "records.records.gz": records,
    "long.seg": long_record,
    "rows.parquet": parquet,
}
