"""List the measured hardware, and give it shorter names."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_note, print_rows
from diode_store.command_line.render import quantity
from diode_store.devices.known import BUILTIN_ALIASES, describe

app = make_app(__doc__)

_COLUMNS = ("name", "vendor", "arch", "multiprocessors", "memory_bytes", "memory_bandwidth_bytes_per_s", "aliases")
_READABLE = ("name", "arch", "SMs", "memory", "bandwidth", "measured", "aliases")


@app.command("list")
def list_(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Show every device model in the warehouse, its aliases and its number of measurements.

    Example: diode hardware list --json
    """
    from diode_store.query.named_devices import stored_hardware

    rows = []
    for row in stored_hardware(database):
        builtin = sorted(alias for alias, name in BUILTIN_ALIASES.items() if name == row.name)
        values = (getattr(row.hardware, column) for column in _COLUMNS[:-1])
        rows.append((*values, sorted({*row.aliases, *builtin}), row.measurements))
    if not rows and not as_json:
        print_note("no hardware yet; `diode ingest` and `diode import` add it with the first measurement")
    elif as_json:
        print_rows((*_COLUMNS, "measurements"), rows, as_json=True)
    else:
        print_rows(_READABLE, [_readable(*row) for row in rows])


def _readable(*row: Any) -> tuple[object, ...]:
    name, _, arch, multiprocessors, memory, bandwidth, aliases, measurements = row
    sizes = (quantity(memory, "B"), quantity(bandwidth, "B/s"))
    return name, arch, multiprocessors, *sizes, measurements, aliases


@app.command()
def alias(
    name: Annotated[str, typer.Argument(help="The hardware: its name, a prefix of it, or an alias it has.")],
    alias: Annotated[str, typer.Argument(help="The new, shorter name.")],
    database: DatabaseOption,
    *,
    as_json: JsonOption = False,
) -> None:
    """Make ALIAS another name of the hardware NAME for every --hardware option.

    Example: diode hardware alias "NVIDIA H200" big
    """
    from diode_store.warehouse.database import write_transaction
    from diode_store.warehouse.hardware import add_alias
    from diode_store.warehouse.store import Store

    with Store.open(database) as store, write_transaction(store.engine) as connection:
        found = add_alias(connection, name, alias)
    if as_json:
        print_rows(("alias", "hardware"), [(alias.lower(), row.name) for row in found], as_json=True)
    else:
        typer.echo(f"{alias.lower()} now means {describe(found)}")
