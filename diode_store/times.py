"""Times as databases and files return them, some without a zone, though all are written in UTC; and durations."""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from datetime import datetime

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def with_zone(moment: datetime) -> datetime:
    """Return a time with its zone: the one it names, or else UTC. SQLite, for one, keeps none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_duration_s(text: str, option: str) -> float:
    """Return the seconds of a duration as people type it: 90, 90s, 30m or 2h.

    Raises:
        SettingsError: it is none; the message names the ``option``.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{option} {text!r} is not a duration; write 90, 90s, 30m or 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]
