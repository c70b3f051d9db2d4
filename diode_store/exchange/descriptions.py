"""Descriptions given on the command line for a whole file: hardware, environment, time."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from diode_store.errors import ImportFileError
from diode_store.records import Environment, Hardware
from diode_store.system.files import read_bounded
from diode_store.values.times import with_zone
from diode_store.warehouse import record_fields

if TYPE_CHECKING:
    from pathlib import Path

_HARDWARE_TEXTS = ("vendor", "name", "arch")
_HARDWARE_NUMBERS = tuple(name for name in record_fields.HARDWARE if name not in _HARDWARE_TEXTS)


def hardware_file(path: Path) -> Hardware:
    """Return the hardware described by a JSON object with at least vendor, name, arch and multiprocessors.

    Raises:
        ImportFileError: the file cannot be read, or a field is missing, unknown or of the wrong type.
    """
    content = _object(path, (*_HARDWARE_TEXTS, *_HARDWARE_NUMBERS))
    missing = [name for name in (*_HARDWARE_TEXTS, "multiprocessors") if content.get(name) is None]
    if missing:
        raise ImportFileError(f"{path}: no {', '.join(missing)}; these identify hardware")
    for name, value in content.items():
        if name in _HARDWARE_TEXTS and not (isinstance(value, str) and value):
            raise ImportFileError(f"{path}: {name} must be text, not {value!r}")
        if name in _HARDWARE_NUMBERS and value is not None and (type(value) is not int or value < 1):
            raise ImportFileError(f"{path}: {name} must be a positive whole number, not {value!r}")
    return Hardware(**content)


def environment_file(path: Path) -> Environment:
    """Return the environment described by a JSON object; missing attributes are unknown.

    Raises:
        ImportFileError: the file cannot be read, or a field is unknown or not text.
    """
    content = _object(path, (*record_fields.ENVIRONMENT, "template_hashes"))
    hashes = content.get("template_hashes", {})
    if not isinstance(hashes, dict) or not all(isinstance(value, str) for value in hashes.values()):
        raise ImportFileError(f"{path}: template_hashes must be an object of template -> hash")
    for name in record_fields.ENVIRONMENT:
        if name in content and not (isinstance(content[name], str) and content[name]):
            raise ImportFileError(f"{path}: {name} must be text, not {content[name]!r}")
    return Environment(**content)


def time_of(text: str) -> datetime:
    """Return an ISO 8601 time, in UTC unless the text names another zone.

    Raises:
        ImportFileError: the text is no such time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ImportFileError(f"{text!r} is not a time; write 2026-11-20 or 2026-11-20T12:30:00+01:00") from error
    return with_zone(moment)


def _object(path: Path, known: tuple[str, ...]) -> dict[str, Any]:
    try:
        content = json.loads(read_bounded(path))
    except OSError as error:
        raise ImportFileError(f"{path}: {error.strerror or error}; check the file's name") from error
    except (ValueError, RecursionError) as error:
        raise ImportFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ImportFileError(f"{path} must hold a JSON object with some of: {', '.join(known)}")
    unknown = sorted(content.keys() - set(known))
    if unknown:
        raise ImportFileError(f"{path}: unknown fields {', '.join(unknown)}; known: {', '.join(known)}")
    return content
