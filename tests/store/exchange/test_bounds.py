"""Bounds of what is read, checked before memory is taken: lines, documents, values, claims, kept bad lines."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hostile_files import HOSTILE

from diode_store.errors import RecordError
from diode_store.exchange import bounds
from diode_store.exchange.context import ImportContext
from diode_store.exchange.importing import import_files
from diode_store.system.files import read_bounded
from lanes import long

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.warehouse.store import Store

DIODE = Path(sys.executable).with_name("diode")
SIZES = {"bad.jsonl.gz": 1, "records.records.gz": 0.2, "rows.parquet": 400, "line.jsonl.gz": 1000, "long.seg": 60}
"""MiB that a file unpacks to, where not 100."""


def test_a_long_line_is_skipped() -> None:
    """It costs no more than the limit, and the lines after it are read."""
    stream = io.BytesIO(b"a\n" + b"x" * 25 + b"\nb\n" + b"y" * 10 + b"\n" + b"z" * 99)
    assert list(bounds.bounded_lines(stream, 11)) == [b"a\n", None, b"b\n", b"y" * 10 + b"\n", None]


def test_a_large_document() -> None:
    """It is refused at the limit, not read to its end."""
    assert bounds.read_whole(io.BytesIO(b"x" * 10), 10) == b"x" * 10
    stream = io.BytesIO(b"x" * 100)
    with pytest.raises(RecordError, match=r"^it is larger than 10 bytes, the limit of this format; split it"):
        bounds.read_whole(stream, 10)
    assert stream.tell() == 11


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (bounds.check_json, b"[" + b"[]," * 20 + b"0]"),
        (bounds.unpack_msgpack, msgpack.packb([[[]] * 9, {"a": 1}] * 2)),
    ],
)
def test_many_values(read: Callable[[bytes, int], Any], content: bytes) -> None:
    """They are counted before, or while, they are made."""
    read(content, 100)
    with pytest.raises(RecordError, match=r"^it holds more than 20 values; split it"):
        read(content, 20)


def test_a_long_list_of_msgpack() -> None:
    """It is refused before it is made, whatever holds it."""
    content = msgpack.packb([[None] * 4_000_000])
    tracemalloc.start()
    try:
        with pytest.raises(RecordError, match=r"^it holds more than 1,000 values; split it"):
            bounds.unpack_msgpack(content, 1_000)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()


CLAIMS = (b"\xdd" + (50_000).to_bytes(4)) * 500 + b"\x00" * 60_000
"""Arrays inside arrays, each of which claims more than follows."""


def test_claims_of_msgpack() -> None:
    """A data set is refused without taking what its lists claim."""
    with pytest.raises(ValueError, match="it ends too early"):
        bounds.unpack_msgpack(CLAIMS)


def test_bad_lines_are_counted(store: Store, tmp_path: Path) -> None:
    """The first ones are kept and short, however many there are and whatever they hold."""
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"op": 1, "{"x" * 9_000}": 2}}\n' * 5 + "{}\n" * 1_100)
    said: list[str] = []
    report = import_files(store, [str(path)], ImportContext(), on_bad=said.append)
    assert (len(report.bad), report.bad_count, len(said)) == (1_000, 1_105, 1_105)
    assert max(map(len, report.bad)) <= 501


def test_a_large_small_file(tmp_path: Path) -> None:
    """A file that people write is not read at any size; a hole in a file costs its maker nothing."""
    path = tmp_path / "picks.json"
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(OSError, match="larger than 67,108,864 bytes"):
        read_bounded(path)


LAUNCHER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(status, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
"""
"""A process's peak begins at that of the process that started it, so a small one has to."""


def _imported(path: Path, database: Path) -> tuple[int, int]:
    """Import a file in a process; return its exit status and its peak of memory in MiB."""
    command = [str(DIODE), "import", "--database", str(database), "--hardware", "h200", "--op", "mm", str(path)]
    shown = subprocess.check_output([sys.executable, "-c", LAUNCHER, *command], text=True)
    status, peak = map(int, shown.split())
    return status, peak


@long
@pytest.mark.parametrize("name", HOSTILE)
def test_every_import_stays_small(name: str, tmp_path: Path, database_path: Path) -> None:
    """Whatever a small file unpacks to, importing it fails as a command does and takes less than 512 MB."""
    path = HOSTILE[name](tmp_path / name, int(SIZES.get(name, 100) * 2**20))
    assert path.stat().st_size < 8 * 2**20
    status, peak = _imported(path, database_path)
    assert (status, peak < 512) == (1, True), peak
