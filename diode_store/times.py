"""Times as databases and files return them: some without a zone, though all are written in UTC."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


def with_zone(moment: datetime) -> datetime:
    """Return a time with its zone: the one it names, or else UTC. SQLite, for one, keeps none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
