"""Limit Python's garbage collector, which costs time here and finds nothing."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Thresholds of gc.set_threshold: new objects, young collections, older collections. Records have no cycles.
_SELDOM = (50_000, 20, 100)


@contextmanager
def loading() -> Iterator[None]:
    """Pause collection while modules load."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def ingesting() -> Iterator[None]:
    """Exclude the objects loaded so far, and collect rarely while records come and go."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
