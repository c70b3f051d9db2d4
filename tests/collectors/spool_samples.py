"""Measurements and segments that the spool's tests are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diode_store.candidates.names import kernel_config
from diode_store.records import Environment, Hardware, Measurement, Outcome, Problem, Source, TensorSpec, Timing
from diode_store.wire.codec import encode
from diode_store.wire.segment_layout import Header, end_to_bytes, frame_to_bytes, pack_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from diode_store.warehouse.store import Store

HARDWARE = Hardware("nvidia", "NVIDIA H200", "sm_90", 132)
ENVIRONMENT = Environment(torch="2.11.0", triton="3.6.0", compute="cuda 13.0")


def uid_of(number: int) -> bytes:
    """Return the uid of the ``number``-th sample."""
    return number.to_bytes(16)


def sample(number: int = 1, timings: int = 2) -> Measurement:
    """Return a measurement with one failure and ``timings - 1`` runtimes, all its own."""
    m = 16 * (number % 50 + 1)
    problem = Problem.create(
        "mm", (TensorSpec("bfloat16", (m, 64), (64, 1)), TensorSpec("bfloat16", (64, 32), (32, 1)))
    )
    failed = Timing(kernel_config("mm", {}), None, Outcome.OUT_OF_RESOURCES)
    timed = [
        Timing(kernel_config("triton_mm", {"BLOCK_M": 16, "BLOCK_N": 16, "GROUP_M": i}), 10.0 + number + i)
        for i in range(1, timings)
    ]
    return Measurement(
        uid=uid_of(number),
        hardware=HARDWARE,
        environment=ENVIRONMENT,
        problem=problem,
        timings=(failed, *timed),
        source=Source.SWEEP,
        measured_at=datetime(2026, 11, 20, tzinfo=UTC),
    )


def frames_of(numbers: Sequence[int], *, compress: bool = True) -> list[bytes]:
    """Return a frame for each sample."""
    return [frame_to_bytes(uid_of(n), pack_payload(encode(sample(n)), compress=compress)) for n in numbers]


def header_bytes(*, compress: bool = True, version: int = 1) -> bytes:
    """Return the header of the samples' segments."""
    return Header(b"w" * 16, 7, compress, version).to_bytes()


def segment_bytes(numbers: Sequence[int], *, compress: bool = True, sealed: bool = True) -> bytes:
    """Return a whole segment of samples."""
    end = end_to_bytes(len(numbers)) if sealed else b""
    return b"".join((header_bytes(compress=compress), *frames_of(numbers, compress=compress), end))


def segment_of(payloads: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a sealed, uncompressed segment of (uid, payload)."""
    frames = [frame_to_bytes(uid, payload) for uid, payload in payloads]
    return b"".join((header_bytes(compress=False), *frames, end_to_bytes(len(frames))))


def put(directory: Path, name: str, content: bytes) -> Path:
    """Put a segment into the spool."""
    path = directory / name
    path.write_bytes(content)
    return path


def kept(directory: Path) -> list[str]:
    """Return the names in the quarantine."""
    return sorted(path.name for path in (directory / "quarantine").glob("*"))


def stored(store: Store) -> list[int]:
    """Return the numbers of the samples in the warehouse."""
    with store.engine.connect() as connection:
        uids = connection.exec_driver_sql("SELECT uid FROM measurements ORDER BY id").scalars()
        return [int.from_bytes(uid) for uid in uids]
