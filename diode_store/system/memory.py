"""A limit on the memory of this process, which the system keeps."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATUS = Path("/proc/self/status")


@contextlib.contextmanager
def memory_limit(most: int, *, room: int = 0) -> Iterator[None]:
    """Let every allocation fail that would take this process above ``most`` bytes, with ``MemoryError`` in Python.

    Only Linux can; elsewhere this does nothing.

    Args:
        most: the limit.
        room: bytes that may be added in any case, should the process be large already.
    """
    undo = limit_memory(most, room=room)
    try:
        yield
    finally:
        undo()


def limit_memory(most: int, *, room: int = 0) -> Callable[[], None]:
    """Limit this process from now on, like ``memory_limit``; return what lifts the limit."""
    with contextlib.suppress(ImportError, OSError, ValueError, KeyError):
        import resource

        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        reserved, used = (int(fields[name].split()[0]) << 10 for name in ("VmData", "VmRSS"))
        before = resource.getrlimit(resource.RLIMIT_DATA)
        # The system counts reserved memory, used or not.
        resource.setrlimit(resource.RLIMIT_DATA, (max(reserved - used + most, reserved + room), before[1]))
        return partial(resource.setrlimit, resource.RLIMIT_DATA, before)
    return lambda: None
