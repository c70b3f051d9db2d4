"""Bring measurements from the spool into the warehouse.

Once, or as a daemon (`run`). Records are committed to the warehouse before they leave the spool, and one that is
there already is not added again. What cannot be read goes to quarantine/ in the spool, with the reason beside it.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from diode_collectors import garbage
from diode_collectors.options import SpoolOption  # noqa: TC001 - likewise
from diode_collectors.pack_cli import pack
from diode_collectors.run_cli import run_, unit
from diode_store.console import (
    DatabaseOption,
    JsonOption,
    make_app,
    print_error,
    print_json,
    print_pairs,
    progress,
    run,
)
from diode_store.errors import SpoolError
from diode_store.render import counted

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from diode_collectors.ingest import IngestReport, Progress
    from diode_collectors.validate import Validation
    from diode_store.store import Store

_LISTED = 20

app = make_app(
    __doc__,
    help=__doc__,
    invoke_without_command=True,
    epilog="Example: diode-ingest --once && diode-ingest status",
)


@app.callback()
def _root(
    context: typer.Context,
    spool: SpoolOption,
    database: DatabaseOption,
    *,
    once: Annotated[bool, typer.Option("--once", help="Ingest what is there, then exit.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what --once would do; change nothing.")] = False,
    bundled: Annotated[
        bool, typer.Option("--bundled", help="First put the measurements that come with torch-diode into the spool.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    if context.invoked_subcommand is not None:
        _refuse_misplaced_options(context)
    elif once or dry_run:
        _ingest_once(spool, database, dry_run=dry_run, bundled=bundled, as_json=as_json)
    else:
        raise typer.BadParameter("say what to do: --once, --dry-run, or a command such as `run`")


def _refuse_misplaced_options(context: typer.Context) -> None:
    command = context.invoked_subcommand
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{parameter.opts[0]} does not go before {command!r}; see `{command} --help`")


app.command("run")(run_)
app.command()(unit)
app.command()(pack)


@app.command()
def status(spool: SpoolOption, *, as_json: JsonOption = False) -> None:
    """Show what waits and what is in quarantine.

    Example: diode-ingest status --json
    """
    from dataclasses import asdict

    from diode_collectors.spool import Spool

    found = asdict(Spool(spool).status())
    if not as_json:
        reasons = found["quarantined_by_reason"]
        found["quarantined_by_reason"] = ", ".join(f"{reason} {n:,}" for reason, n in reasons.items()) or None
    print_pairs(found, as_json=as_json)


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Segments, or folders that hold some.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Check every record of segments.

    Each is read and decoded as ingesting would do it. Nothing is changed.

    Example: diode-ingest validate spool/quarantine
    """
    from diode_collectors.validate import segments_of

    reports = _validated(segments_of(files))
    if as_json:
        print_json(reports)
    for report in reports:
        for problem in report.problems:
            print_error(f"{report.file}: {problem}")
        if not as_json:
            verdict = f"{len(report.problems)} bad" if report.problems else "all good"
            typer.echo(f"{report.file}: {counted(report.frames, 'record')}, {report.timings:,} timings, {verdict}")
    if any(report.problems for report in reports):
        raise typer.Exit(1)


def _validated(segments: list[Path]) -> list[Validation]:
    from diode_collectors.validate import validate

    reports = []
    with progress("checking segments", len(segments)) as advance:
        for segment in segments:
            reports.append(validate(segment))
            advance(1)
    return reports


def _ingest_once(spool_dir: Path, database: str, *, dry_run: bool, bundled: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from diode_collectors.signals import run_until_signalled
    from diode_store.resources import bundled_data_dir

    bundled_dir = bundled_data_dir() if bundled else None

    def work(stop: threading.Event) -> IngestReport:
        from diode_store.store import Store

        with Store.open(database) as store, garbage.ingesting():
            if dry_run:
                return _pass(bundled_dir or spool_dir, store, stop, dry_run=True)
            return _real_pass(spool_dir, bundled_dir, store, stop)

    report = run_until_signalled(work)
    for rejection in report.rejections[:_LISTED]:
        print_error(str(spool_dir / str(rejection)))
    for problem in report.unreadable[:_LISTED]:
        print_error(problem)
    if as_json:
        print_json({"spool": spool_dir, "dry_run": dry_run, **asdict(report)})
    else:
        typer.echo(("dry run: " if dry_run else "") + _summary(report, spool_dir))
    if report.rejected or report.unreadable:
        raise typer.Exit(1)


def _real_pass(spool_dir: Path, bundled_dir: Path | None, store: Store, stop: threading.Event) -> IngestReport:
    from diode_collectors.spool import Spool

    spool = Spool(spool_dir)
    with spool.lock():
        shipped = Spool(bundled_dir).sealed() if bundled_dir else []
        if bundled_dir and not shipped:
            raise SpoolError(f"{bundled_dir}: no measurements there; reinstall torch-diode")
        for segment in shipped:
            spool.add(segment)
        return _pass(spool_dir, store, stop, dry_run=False)


def _pass(spool_dir: Path, store: Store, stop: threading.Event, *, dry_run: bool) -> IngestReport:
    from diode_collectors.ingest import ingest_once

    done = 0.0
    with progress("ingesting, %", 100) as advance:

        def show(now: Progress) -> None:
            nonlocal done
            percent = 100 * now.done_bytes / max(now.total_bytes, 1)
            advance(percent - done)
            done = percent

        return ingest_once(spool_dir, store, dry_run=dry_run, should_stop=stop.is_set, on_progress=show)


def _summary(report: IngestReport, spool_dir: Path) -> str:
    counts = f"{report.measurements:,} new, {report.duplicates:,} already stored"
    if report.rejected:
        counts += f", {report.rejected:,} rejected"
    if not (report.segments or report.measurements or report.duplicates or report.rejected or report.stopped):
        return f"{counts}; nothing waits in {spool_dir}"
    ending = "; stopped early, the rest is still in the spool" if report.stopped else ""
    return f"{counts}; {report.timings:,} new timings, {counted(report.segments, 'segment')} done{ending}"


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run ``diode-ingest`` and exit with its status."""
    run(app, args, name="diode-ingest")
