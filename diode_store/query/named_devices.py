"""The devices of a lake by what people call them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diode_store.devices import match_hardware

if TYPE_CHECKING:
    import duckdb


class Device(NamedTuple):
    """A device of the lake."""

    id: int
    name: str
    arch: str
    multiprocessors: int


def devices_in(connection: duckdb.DuckDBPyConnection) -> list[Device]:
    """Return all devices, by name."""
    rows = connection.execute("SELECT id, name, arch, multiprocessors FROM hardware ORDER BY name, id").fetchall()
    return [Device(*row) for row in rows]


def named_devices(connection: duckdb.DuckDBPyConnection, text: str, *, all_matches: bool = False) -> list[Device]:
    """Return the devices that ``text`` names: an alias, a name, or the first words of one.

    Args:
        connection: over the lake.
        text: the name as typed.
        all_matches: accept device models that differ in arch or multiprocessors.

    Raises:
        HardwareError: none matches, or several do that are not comparable; the message lists them.
    """
    devices = devices_in(connection)
    names = {device.id: device.name for device in devices}
    aliases: dict[str, set[str]] = {}
    for alias, number in connection.execute("SELECT alias, hardware_id FROM hardware_aliases").fetchall():
        aliases.setdefault(alias, set()).add(names[number])
    return match_hardware(devices, text, all_matches=all_matches, aliases=aliases)
