"""The hardware in a warehouse, and the search for a typed name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from diode_store.devices.known import BUILTIN_ALIASES, KNOWN_DEVICES, describe, known_device, match_hardware
from diode_store.errors import HardwareError
from diode_store.records import Hardware
from diode_store.warehouse import record_fields, schema

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BUILTIN_ALIASES",
    "KNOWN_DEVICES",
    "StoredHardware",
    "add_alias",
    "describe",
    "known_device",
    "list_hardware",
    "match",
    "match_hardware",
    "stored_aliases",
]


@dataclass(frozen=True)
class StoredHardware:
    """One device model of a warehouse."""

    id: int
    hardware: Hardware
    aliases: tuple[str, ...]
    """Stored aliases, sorted; the built-in ones are not among them."""
    measurements: int

    @property
    def name(self) -> str:
        """Name as the driver reports it."""
        return self.hardware.name

    @property
    def arch(self) -> str:
        """Architecture, such as ``sm_90``."""
        return self.hardware.arch

    @property
    def multiprocessors(self) -> int:
        """Number of multiprocessors."""
        return self.hardware.multiprocessors


def list_hardware(connection: sa.Connection) -> list[StoredHardware]:
    """Return every device model in the warehouse, by name."""
    table, measurements = schema.hardware, schema.measurements
    count = sa.select(sa.func.count()).where(measurements.c.hardware_id == table.c.id).scalar_subquery()
    query = sa.select(table, count.label("measurements")).order_by(table.c.name, table.c.id)
    aliases: dict[int, list[str]] = {}
    alias = schema.hardware_aliases.c
    for text, number in connection.execute(sa.select(alias.alias, alias.hardware_id).order_by(alias.alias)):
        aliases.setdefault(number, []).append(text)
    return [
        StoredHardware(
            row["id"],
            Hardware(**{name: row[name] for name in record_fields.HARDWARE}, extra=row["extra"] or {}),
            tuple(aliases.get(row["id"], ())),
            row["measurements"],
        )
        for row in connection.execute(query).mappings()
    ]


def stored_aliases(rows: Sequence[StoredHardware]) -> dict[str, set[str]]:
    """Return alias → names of the hardware it stands for, as ``match_hardware`` takes it."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for alias in row.aliases:
            found.setdefault(alias, set()).add(row.name)
    return found


def match(
    connection_or_rows: sa.Connection | Sequence[StoredHardware],
    text: str,
    *,
    all_matches: bool | None = False,
    measured_first: bool = True,
) -> list[StoredHardware]:
    """Return the hardware of the warehouse that ``text`` means: alias, exact name, or prefix at a word's end.

    Args:
        connection_or_rows: the warehouse, or the result of ``list_hardware``.
        text: text that a person typed; case does not matter.
        all_matches: accept device models that differ in arch or multiprocessors; None for a caller without the option.
        measured_first: if several match and some have measurements, only these count.

    Raises:
        HardwareError: none matches, or several that are not comparable do; the message lists the candidates.
    """
    if isinstance(connection_or_rows, sa.Connection):
        connection_or_rows = list_hardware(connection_or_rows)
    rows = list(connection_or_rows)
    measured = [row for row in rows if row.measurements] if measured_first else []
    return match_hardware(rows, text, all_matches, stored_aliases(rows), measured)


def add_alias(connection: sa.Connection, name: str, alias: str) -> list[StoredHardware]:
    """Make ``alias`` mean the hardware that ``name`` means, whatever it meant before.

    Returns:
        The hardware it now stands for.

    Raises:
        HardwareError: ``name`` matches none or several, or ``alias`` is empty or a device's name.
    """
    rows = list_hardware(connection)
    found = match(rows, name, all_matches=None, measured_first=False)
    word = " ".join(alias.lower().split())
    if not word or not word.isprintable():
        raise HardwareError("an alias must be one or more printable characters, such as h200")
    if any(row.name.lower() == word for row in rows):
        raise HardwareError(f"{alias!r} is the name of a device; give the hardware first, then a new name for it")
    table = schema.hardware_aliases
    connection.execute(sa.delete(table).where(table.c.alias == word))
    connection.execute(sa.insert(table), [{"alias": word, "hardware_id": row.id} for row in found])
    return found
