"""Show and rebuild the cache, the copy of the warehouse that queries read."""

from __future__ import annotations

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_pairs

app = make_app(__doc__)


@app.command(epilog="Example: diode cache status --database warehouse.db --json")
def status(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Show the cache's content, its size, and its damage, if any is known."""
    from dataclasses import asdict

    from diode_store.cache.cache import cache_of
    from diode_store.cache.status import cache_status

    found = asdict(cache_status(cache_of(database)))
    if not as_json:
        found = {name: f"{value:,}" if isinstance(value, int) else value for name, value in found.items()}
        found["damage"] = found["damage"] or "none"
    print_pairs(found, as_json=as_json)


@app.command(epilog="Example: diode cache rebuild --database warehouse.db")
def rebuild(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Copy everything again. Queries that run meanwhile finish on the old state."""
    from diode_store.commands.sync import run_sync

    run_sync(database, rebuild=True, as_json=as_json)
