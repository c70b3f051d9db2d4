"""Wait in a test for what another thread or process does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def eventually(condition: Callable[[], object], *, within_s: float = 60.0, every_s: float = 0.02) -> None:
    """Wait until ``condition`` holds, or fail."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {within_s:.0f} s"
        time.sleep(every_s)
