"""Content and size of a cache."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diode_store.cache.cache import FORMAT
from diode_store.errors import CacheError

if TYPE_CHECKING:
    from diode_store.cache.cache import Cache


@dataclass(frozen=True)
class CacheStatus:
    """State of a cache at one moment."""

    cache: str
    format: int
    revision: str
    """Schema revision of the copied warehouse."""
    warehouse: str
    """Uuid of the copied warehouse."""
    generation: int
    """Number of the cache's state; every change increases it."""
    synced_at: datetime
    """Time of this state in the warehouse."""
    measurements: int
    timings: int
    base_timings: int
    """Timings in the base."""
    dropped: int
    """Deleted measurements that are still in the base; no query sees them."""
    left_out: int
    """Rows of the warehouse that the cache lacks because a value does not fit its column."""
    bytes: int
    """Size of both files."""
    damage: str | None
    """Damage of the files, if any is known; the next sync repairs it."""


def cache_status(cache: Cache) -> CacheStatus:
    """Return the status of ``cache`` without changing it.

    Raises:
        CacheError: there is no cache, or its state is damaged.
    """
    state = cache.state()
    if state is None:
        raise CacheError(f"{cache} holds no cache; run `diode sync`")
    return CacheStatus(
        cache=str(cache),
        format=FORMAT,
        revision=state.revision,
        warehouse=state.warehouse,
        generation=state.generation,
        synced_at=datetime.fromtimestamp(state.synced_at, UTC),
        measurements=state.measurements,
        timings=state.timings,
        base_timings=state.base_timings,
        dropped=state.dropped,
        left_out=sum(map(len, state.left_out.values())),
        bytes=sum(file.bytes for file in state.files.values()),
        damage=cache.damage(state),
    )
