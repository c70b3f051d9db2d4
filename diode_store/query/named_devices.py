"""The devices of a cache, by their names and aliases."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diode_store.devices.known import match_hardware
from diode_store.records import Hardware
from diode_store.system.urls import is_published
from diode_store.warehouse import record_fields

if TYPE_CHECKING:
    import duckdb

    from diode_store.warehouse.hardware import StoredHardware


class Device(NamedTuple):
    """A device of the cache."""

    id: int
    name: str
    arch: str
    multiprocessors: int


def stored_hardware(url: str) -> list[StoredHardware]:
    """Return every device model of a warehouse or published table, by name.

    Raises:
        DatabaseError: the warehouse cannot be read.
        PublishedTableError: the published table cannot be read.
    """
    from diode_store.warehouse.hardware import StoredHardware, list_hardware
    from diode_store.warehouse.store import Store

    if not is_published(url):
        with Store.open(url) as store, store.engine.connect() as connection:
            return list_hardware(connection)
    from diode_store.query.analytics import connect

    columns = ", ".join(f"h.{name}" for name in record_fields.HARDWARE)
    with connect(url, views=()) as cache:
        rows = cache.execute(
            f"SELECT h.id, {columns}, (SELECT count(*) FROM measurements AS m WHERE m.hardware_id = h.id) "  # noqa: S608 - our own names
            "FROM hardware AS h ORDER BY h.name, h.id"
        ).fetchall()
    return [
        StoredHardware(number, Hardware(**dict(zip(record_fields.HARDWARE, values, strict=True))), (), measurements)
        for number, *values, measurements in rows
    ]


def devices_in(connection: duckdb.DuckDBPyConnection) -> list[Device]:
    """Return all devices, ordered by name."""
    rows = connection.execute("SELECT id, name, arch, multiprocessors FROM hardware ORDER BY name, id").fetchall()
    return [Device(*row) for row in rows]


def measured_devices(connection: duckdb.DuckDBPyConnection) -> list[Device]:
    """Return the devices with measurements, ordered by name."""
    rows = connection.execute("SELECT DISTINCT hardware_id FROM measurements").fetchall()
    measured = {number for (number,) in rows}
    return [device for device in devices_in(connection) if device.id in measured]


def named_devices(
    connection: duckdb.DuckDBPyConnection, text: str, *, all_matches: bool | None = False
) -> list[Device]:
    """Return the devices that ``text`` names: an alias, a name, or the first words of a name.

    If several devices match, those with measurements take precedence.

    Args:
        connection: over the cache.
        text: the name as typed.
        all_matches: accept device models that differ in arch or multiprocessors; None if the caller has no such option.

    Raises:
        HardwareError: no device matches, or several match that are not comparable; the message lists them.
    """
    devices = devices_in(connection)
    names = {device.id: device.name for device in devices}
    aliases: dict[str, set[str]] = {}
    for alias, number in connection.execute("SELECT alias, hardware_id FROM hardware_aliases").fetchall():
        aliases.setdefault(alias, set()).add(names[number])
    return match_hardware(devices, text, all_matches, aliases, measured_devices(connection))
