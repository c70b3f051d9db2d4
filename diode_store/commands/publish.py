"""Publish the warehouse's timings to a Delta table, which a fleet shares and other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note, progress
from diode_store.command_line.render import counted

if TYPE_CHECKING:
    from diode_store.query.publish import PublishReport

app = make_app(__doc__)


@app.command(epilog="Example: diode publish s3://fleet/timings --compact --vacuum")
def publish(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="The table: s3://, gs://, az:// or abfss://, or a folder. Made if missing."),
    ],
    database: DatabaseOption,
    *,
    compact: Annotated[bool, typer.Option("--compact", help="Then join the table's small files.")] = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then delete files that were replaced more than 7 days ago.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be written and deleted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write what the table lacks of this warehouse; any number of machines may publish at once.

    Measurements that the warehouse superseded or deleted change in the table, too. Credentials come from the
    environment, such as AWS_ACCESS_KEY_ID.
    """
    from dataclasses import asdict

    from diode_store.commands.sync import note_sync
    from diode_store.delta import table as delta
    from diode_store.query.publish import publish as publish_timings

    try:
        with progress("publishing timings") as advance:
            report = publish_timings(database, url, dry_run=dry_run, on_sync=note_sync, on_progress=advance)
    except KeyboardInterrupt:
        print_note("interrupted; what was committed stays, and the next publication writes the rest")
        raise
    found = {"dry_run": dry_run, **asdict(report)}
    if (compact or vacuum) and report.version is not None:
        table = delta.open_table(report.table)
        with progress("tidying the table"):
            if compact:
                found["compacted_files"] = delta.compact(table, dry_run=dry_run)
            if vacuum:
                found["vacuumed_files"] = len(delta.vacuum(table, dry_run=dry_run))
        found["version"] = table.version()
    if as_json:
        print_json(found)
        return
    typer.echo(f"{report.table}: {_summary(report, dry_run=dry_run)} ({report.seconds:.2f} s)")
    for name, what in (("compacted_files", "joined with others"), ("vacuumed_files", "deleted")):
        if name in found:
            print_note(f"{counted(found[name], 'file')} {'to be ' if dry_run else ''}{what}")


def _summary(report: PublishReport, *, dry_run: bool) -> str:
    done = []
    if report.added:
        done.append(f"{counted(report.added, 'measurement')} with {counted(report.added_timings, 'timing')} added")
    if report.changed:
        done.append(f"{counted(report.changed, 'measurement')} changed")
    if report.removed:
        done.append(f"{counted(report.removed, 'measurement')} removed")
    if not done:
        return "nothing to publish"
    return f"{'to be written: ' if dry_run else ''}{', '.join(done)}"
