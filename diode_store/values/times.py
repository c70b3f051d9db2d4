"""Read times from databases and files, which may lack a zone and are then in UTC; parse and show durations."""

from __future__ import annotations

import re
from datetime import UTC
from typing import TYPE_CHECKING

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from datetime import datetime

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_WHOLE_SECONDS = 10
"""Number of seconds from which a duration is shown without tenths."""
_MANY = 10
"""Number of a unit from which a duration is shown in that unit alone."""


def with_zone(moment: datetime) -> datetime:
    """Return a time with its zone: the one it names, or else UTC. SQLite, for one, keeps none."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_duration_s(text: str, option: str) -> float:
    """Return the seconds of a duration as people type it: 90, 90s, 30m or 2h.

    Raises:
        SettingsError: the text is no duration; the message names the ``option``.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise SettingsError(f"{option} {text!r} is not a duration; write 90, 90s, 30m or 2h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: ``0.3 s``, ``45 s``, ``12 min``, ``3 h 20 min``, ``4 d 11 h``."""
    if abs(seconds) < _WHOLE_SECONDS:
        return f"{seconds:.1f} s"
    left = round(abs(seconds))
    sign = "-" if seconds < 0 else ""
    for size_s, unit, below_s, below in _UNITS:
        if left >= size_s:
            whole, rest = divmod(left, size_s)
            rest //= below_s
            return f"{sign}{whole:,} {unit}" + (f" {rest} {below}" if rest and whole < _MANY else "")
    return f"{sign}{left} s"
