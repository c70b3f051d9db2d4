"""Launch one kernel several times in a CUDA graph, each time over operands that are not in the cache."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diode_store.errors import DiodeError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Operands repeat only after a little more than twice the cache has passed, as for a flush.
_ROTATION_FACTOR = 2.5
_FEWEST_SETS = 2


class CaptureError(DiodeError):
    """A kernel cannot be launched in a CUDA graph."""


@dataclass
class OperandSets:
    """Copies of a problem's operands, made on demand and shared by all of its kernels."""

    first: Sequence[Any]
    """Every tensor that a kernel reads or writes; views of one storage are copied once."""
    most_bytes: float = math.inf
    """Limit on the bytes of all copies together."""
    _copies: list[dict[int, Any]] = field(default_factory=list)

    @cached_property
    def bytes(self) -> int:
        """Size of one set in bytes."""
        return sum(flat.numel() * flat.element_size() for flat in self._storages.values())

    def of(self, number: int, tensors: Sequence[Any]) -> list[Any]:
        """Return the copies of ``tensors`` in a set; set 0 holds the tensors themselves.

        Raises:
            CaptureError: there is no memory for another set. The kernel is not at fault.
        """
        if not number:
            return list(tensors)
        if number * self.bytes > self.most_bytes:
            raise CaptureError(f"{number} copies of the operands take more than {self.most_bytes:,.0f} bytes")
        import torch

        try:
            while len(self._copies) < number:
                self._copies.append({pointer: flat.clone() for pointer, flat in self._storages.items()})
        except torch.OutOfMemoryError as error:
            self._copies.clear()  # the caller goes on without copies, and needs the memory
            raise CaptureError(f"has no other operands: {first_line(error)}") from error
        copies = self._copies[number - 1]
        return [
            copies[t.untyped_storage().data_ptr()].as_strided(t.size(), t.stride(), t.storage_offset()) for t in tensors
        ]

    @cached_property
    def _storages(self) -> dict[int, Any]:
        """Return each storage as a flat tensor, by its address."""
        found: dict[int, Any] = {}
        for tensor in self.first:
            storage = tensor.untyped_storage()
            elements = storage.nbytes() // tensor.element_size()
            found.setdefault(storage.data_ptr(), tensor.as_strided((elements,), (1,), 0))
        return found


@dataclass(frozen=True)
class Rotation:
    """Launches one kernel over one set of operands after another."""

    sets: OperandSets
    launch_over: Callable[[int], Callable[[], object]]
    """Returns the launcher of the kernel over a set."""

    def launches(self, count: int, l2_bytes: int) -> list[Callable[[], object]]:
        """Return ``count`` launches, each with operands that an L2 cache of ``l2_bytes`` no longer holds."""
        enough = math.ceil(_ROTATION_FACTOR * l2_bytes / max(self.sets.bytes, 1))
        sets = min(count, max(enough, _FEWEST_SETS))
        over = [self.launch_over(number) for number in range(sets)]
        return [over[launch % sets] for launch in range(count)]


def graph_of(launches: Sequence[Callable[[], object]], stream: Any, pool: Any) -> Any:
    """Return a CUDA graph of ``launches``, which were prepared on ``stream``, the current one.

    The caller keeps ``launches`` as long as the graph, because they own memory that the graph uses.

    Raises:
        CaptureError: a launch does something that a graph cannot hold.
    """
    import torch

    graph: Any = torch.cuda.CUDAGraph()
    stream.synchronize()
    # Not by torch.cuda.graph(): it collects garbage and empties the allocator's cache first, which takes 100 ms.
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    failed: Exception | None = None
    try:
        for launch in launches:
            launch()
    except Exception as error:  # noqa: BLE001 - whatever it is, the capture must be ended
        failed = error
    try:
        graph.capture_end()
    except RuntimeError as error:
        failed = failed or error
    if failed is not None:
        _end_broken_capture()
        raise CaptureError(f"cannot be launched in a CUDA graph: {first_line(failed)}") from failed
    graph.replay()  # the first replay uploads it
    stream.synchronize()
    return graph


def _end_broken_capture() -> None:
    """Repair torch's random numbers, which a broken capture leaves waiting for its end."""
    import torch

    empty: Any = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(action="ignore"):  # torch warns that the graph is empty
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()
