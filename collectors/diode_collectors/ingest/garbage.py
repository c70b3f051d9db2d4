"""Limits Python's garbage collector, which would take a tenth of the time and find nothing."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# New objects, collections of the young and of the older before the next ones are looked at. Records have no cycles.
_SELDOM = (50_000, 20, 100)


@contextmanager
def loading() -> Iterator[None]:
    """Pause collection while modules are loaded."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def ingesting() -> Iterator[None]:
    """Exclude what is loaded by now, which stays, and collect seldom while records come and go."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
