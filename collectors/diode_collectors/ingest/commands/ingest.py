"""Bring measurements from the spool into the warehouse.

Ingest once, or as a daemon (`run`). A record is committed to the warehouse before it leaves the spool, and is stored
once even if it arrives twice. Damaged data goes to quarantine/ in the spool, with the reason beside it.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from diode_collectors.ingest.commands.once import ingest_waiting
from diode_collectors.ingest.commands.pack import pack
from diode_collectors.ingest.commands.run import run_
from diode_collectors.ingest.commands.settings_options import SettingsOptions, options_of
from diode_collectors.ingest.commands.status import status
from diode_collectors.ingest.commands.unit import unit
from diode_collectors.ingest.commands.watching import alerts, dashboard
from diode_store.command_line.console import (
    JsonOption,
    is_on_command_line,
    make_app,
    print_error,
    print_json,
    progress,
    run,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import cell_text, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.ingest.validate import Validation

app = make_app(
    __doc__,
    help=__doc__,
    invoke_without_command=True,
    epilog="Example: diode-ingest --once && diode-ingest status",
)


@app.callback()
@takes_options(options_of("spool", "database", "group"))
def _root(
    context: typer.Context,
    *,
    once: Annotated[bool, typer.Option("--once", help="Ingest what is there, then exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what --once would do; change nothing.")] = False,
    bundled: Annotated[
        bool,
        typer.Option("--bundled", help="First put the measurements that come with torch-diode into the (first) spool."),
    ] = False,
    as_json: JsonOption = False,
    options: SettingsOptions,
) -> None:
    if context.invoked_subcommand is not None:
        _refuse_misplaced_options(context)
    elif once or dry_run:
        settings = options.load()
        options.note_file(settings.database)
        named = is_on_command_line(context, "database")
        ingest_waiting(settings, dry_run=dry_run, bundled=bundled, as_json=as_json, names_database=named)
    else:
        raise typer.BadParameter("choose --once, --dry-run, or a command such as `run`")


def _refuse_misplaced_options(context: typer.Context) -> None:
    command = context.invoked_subcommand
    for parameter in context.command.params:
        if is_on_command_line(context, parameter.name or ""):
            raise typer.BadParameter(f"{parameter.opts[0]} does not go before {command!r}; see `{command} --help`")


app.command("run")(run_)
app.command()(unit)
app.command()(dashboard)
app.command()(alerts)
app.command()(pack)
app.command()(status)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Segments, or folders of segments.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Check every record of segments.

    Each is read and decoded as in ingesting. Nothing is changed.

    Example: diode-ingest validate spool/quarantine
    """
    from diode_collectors.ingest.validate import segments_of

    reports = _validated(segments_of(files), set(files))
    if as_json:
        print_json(reports)
    for report in reports:
        for problem in report.problems:
            print_error(f"{report.file}: {problem}")
        if not as_json:
            verdict = f"{len(report.problems)} bad" if report.problems else "all good"
            decisions = f", {counted(report.decisions, 'decision')}" if report.decisions else ""
            records = f"{counted(report.frames, 'record')}, {report.timings:,} timings{decisions}"
            typer.echo(f"{cell_text(report.file)}: {records}, {verdict}")
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _validated(segments: list[Path], named: set[Path]) -> list[Validation]:
    from diode_collectors.ingest.validate import validate

    reports = []
    with progress("checking segments", len(segments)) as advance:
        for segment in segments:
            reports.append(validate(segment, is_named=segment in named))
            advance(1)
    return reports


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode-ingest`` and exit with its status."""
    run(app, args, name="diode-ingest")
