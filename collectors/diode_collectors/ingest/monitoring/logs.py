"""Write structured logs to stderr: one line per event, as ``key=value`` or a JSON object."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

_PLAIN = re.compile(r"[\w.:/@+-]+")
LOGGER_NAME = "diode"


class KeyValueFormatter(logging.Formatter):
    """Formats a record as ``at=TIME level=LEVEL event=MESSAGE`` and the fields that ``log`` got.

    Values with blanks, quotes or line breaks become JSON strings, so that an event always takes one line.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return " ".join(f"{name}={_value(value)}" for name, value in self._fields(record).items())

    def _fields(self, record: logging.LogRecord) -> dict[str, object]:
        fields = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return fields


class JsonFormatter(KeyValueFormatter):
    """Formats a record as a JSON object. Numbers stay numbers, anything else becomes text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(self._fields(record), default=str)


_FORMATTERS = {"text": KeyValueFormatter, "json": JsonFormatter}


def configure(level: str, style: str = "text") -> None:
    """Send our own logs to stderr; leave those of other libraries alone.

    Args:
        level: lowest level to log.
        style: ``text`` for key=value, ``json`` for an object per line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[style]())
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers = [handler]
    logger.setLevel(level)
    logger.propagate = False


def log(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log ``event`` with ``fields``."""
    logger.log(level, event, extra={"fields": fields})


def _value(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
