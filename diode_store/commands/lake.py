"""Show and compact the lake, the Parquet copy of the warehouse that queries read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_pairs, progress

if TYPE_CHECKING:
    from diode_store.lake.compact import Compaction

app = make_app(__doc__)

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what a compaction would do.")]


@app.command(epilog="Example: diode lake status --database warehouse.db --json")
def status(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Show the lake's content, its size, and the old files that it still keeps for readers."""
    from dataclasses import asdict

    from diode_store.lake.lake import lake_of
    from diode_store.lake.status import lake_status

    found = asdict(lake_status(lake_of(database)))
    if not as_json:
        found = {name: f"{value:,}" if isinstance(value, int) else value for name, value in found.items()}
        found["generations_read"] = ", ".join(map(str, found["generations_read"])) or "none"
        found["damage"] = found["damage"] or "none"
    print_pairs(found, as_json=as_json)


@app.command(epilog="Example: diode lake compact --database warehouse.db --dry-run")
def compact(database: DatabaseOption, *, dry_run: DryRunOption = False, as_json: JsonOption = False) -> None:
    """Merge small segments, remove dropped measurements from the files, and delete files without readers.

    Queries can run meanwhile, and the warehouse is not needed. A sync merges the smallest segments automatically.
    """
    from dataclasses import asdict

    from diode_store.lake.compact import compact as compact_lake
    from diode_store.lake.lake import lake_of

    lake = lake_of(database)
    with progress("writing timings to larger segments") as advance:
        done = compact_lake(lake, dry_run=dry_run, on_progress=advance)
    if as_json:
        print_json({"lake": str(lake), "dry_run": dry_run, **asdict(done)})
        return
    typer.echo(f"{lake}: {_summary(done, dry_run=dry_run)}")


def _summary(done: Compaction, *, dry_run: bool) -> str:
    if not done.rewritten:
        deleted = f"; {done.files_deleted} old files deleted" if done.files_deleted else ""
        return f"nothing to merge among {done.segments_before} segments{deleted}"
    would = "would be " if dry_run else ""
    parts = [
        f"{done.rewritten} segments {would}rewritten ({done.segments_before} -> {done.segments_after})",
        f"{done.timings:,} timings",
        f"{done.dropped:,} dropped measurements {would}removed",
    ]
    if not dry_run:
        parts += [f"{done.bytes_before:,} -> {done.bytes_after:,} bytes", f"{done.files_deleted} old files deleted"]
    return f"{', '.join(parts)} ({done.seconds:.2f} s)"
