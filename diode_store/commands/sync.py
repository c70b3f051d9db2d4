"""Copy new measurements to the cache that queries read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.render import counted

if TYPE_CHECKING:
    from diode_store.cache.sync import SyncReport

app = make_app(__doc__)

_SHOWN = 3


@app.command(epilog="Example: diode sync --database warehouse.db")
def sync(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Bring the cache up to date with the warehouse; `diode query` and `diode train` do this automatically."""
    run_sync(database, rebuild=False, as_json=as_json)


def run_sync(database: str, *, rebuild: bool, as_json: bool) -> None:
    """Sync the cache of a database, and print the report."""
    from dataclasses import asdict

    from diode_store.cache.cache import cache_of
    from diode_store.cache.sync import sync as sync_cache

    cache = cache_of(database)
    with progress("copying timings to the cache") as advance:
        report = sync_cache(database, cache, rebuild=rebuild, on_progress=advance)
    if as_json:
        print_json({"cache": str(cache), **asdict(report)})
        return
    note_sync(report)
    typer.echo(f"{cache}: {_summary(report)}")


def note_sync(report: SyncReport) -> None:
    """Print on stderr why the cache was rebuilt, if it was, and the rows that it leaves out."""
    if report.rebuilt is not None:
        print_note(f"the cache was rebuilt: {report.rebuilt}")
    for line in report.left_out[:_SHOWN]:
        print_note(f"left out: {line}")
    if report.left_out:
        rows = counted(len(report.left_out), "row")
        print_note(f"{rows} left out; correct what `diode db check` names, then run `diode cache rebuild`")


def _summary(report: SyncReport) -> str:
    done = []
    if report.added:
        done.append(f"{counted(report.added, 'measurement')} with {counted(report.added_timings, 'timing')} copied")
    if report.dropped:
        done.append(f"{counted(report.dropped, 'measurement')} dropped")
    if report.has_new_base:
        done.append("new base written")
    holds = f"holds {counted(report.measurements, 'measurement')}, {counted(report.timings, 'timing')}"
    return f"{', '.join(done) or 'nothing to do'}; {holds} ({report.seconds:.2f} s)"
