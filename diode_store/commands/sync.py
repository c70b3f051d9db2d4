"""Copy new measurements to the lake that queries read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.render import counted

if TYPE_CHECKING:
    from diode_store.lake.sync import SyncReport

app = make_app(__doc__)

_SHOWN = 3


@app.command(epilog="Example: diode sync --database warehouse.db")
def sync(
    database: DatabaseOption,
    *,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Copy everything again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the lake up to date with the warehouse; `diode query` and `diode train` do this automatically."""
    from dataclasses import asdict

    from diode_store.lake.lake import lake_of
    from diode_store.lake.sync import sync as sync_lake

    lake = lake_of(database)
    with progress("copying timings to the lake") as advance:
        report = sync_lake(database, lake, rebuild=rebuild, on_progress=advance)
    if as_json:
        print_json({"lake": str(lake), **asdict(report)})
        return
    note_sync(report)
    typer.echo(f"{lake}: {_summary(report)}")


def note_sync(report: SyncReport) -> None:
    """Print on stderr why the lake was rebuilt, if it was, and the rows that it leaves out."""
    if report.rebuilt is not None:
        print_note(f"the lake was rebuilt: {report.rebuilt}")
    for line in report.left_out[:_SHOWN]:
        print_note(f"left out: {line}")
    if report.left_out:
        rows = counted(len(report.left_out), "row")
        print_note(f"{rows} left out; correct what `diode db check` names, then run `diode sync --rebuild`")


def _summary(report: SyncReport) -> str:
    done = []
    if report.added:
        done.append(f"{counted(report.added, 'measurement')} with {counted(report.added_timings, 'timing')} copied")
    if report.dropped:
        done.append(f"{counted(report.dropped, 'measurement')} dropped")
    if report.merged:
        done.append(f"{counted(report.merged, 'small segment')} merged")
    holds = f"holds {counted(report.measurements, 'measurement')}, {counted(report.timings, 'timing')}"
    return f"{', '.join(done) or 'nothing to do'}; {holds} ({report.seconds:.2f} s)"
