"""Run ``--once`` and ``--dry-run``: one pass over each spool, with a report."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

import typer

from diode_collectors.ingest import garbage
from diode_collectors.ingest.each_spool import in_json, on_each
from diode_store.command_line.console import print_error, print_json, print_note, progress
from diode_store.command_line.render import counted, unknown_op_line
from diode_store.errors import SpoolError, SpoolInUseError
from diode_store.system.urls import redact, sqlite_path

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from diode_collectors.ingest.each_spool import SpoolOutcome
    from diode_collectors.ingest.report import IngestProgress, IngestReport
    from diode_collectors.ingest.settings import DaemonSettings
    from diode_collectors.spool.spool import Spool
    from diode_store.warehouse.store import Store

    _Ended = SpoolOutcome["IngestReport | InUse"]

_LISTED = 20


def ingest_waiting(
    settings: DaemonSettings, *, dry_run: bool, bundled: bool, as_json: bool, names_database: bool = False
) -> None:
    """Ingest what waits in the spools, one after another, and print a report.

    Args:
        settings: the spools and the warehouse.
        dry_run: change nothing.
        bundled: put the bundled measurements into the first spool before the pass.
        as_json: print the report as JSON.
        names_database: True if the user named the warehouse; records of a spool that another process ingests did not go
            there.

    Raises:
        Exit: with 1 if something could not be ingested.
        SpoolError: the only spool failed, or there is no such group.
    """
    from diode_collectors.ingest.report import IngestReport
    from diode_collectors.ingest.signals import run_until_signalled
    from diode_collectors.spool.files import group_id
    from diode_store.command_line.diagnosis import on_a_network

    for finding in on_a_network(sqlite_path(settings.database), settings.spool):
        print_note(f"warning: {finding}")
    if settings.group and not dry_run:
        group_id(settings.group)  # else every spool would fail for the same reason

    def work(stop: threading.Event) -> list[_Ended]:
        from diode_store.warehouse.store import Store

        with Store.open(settings.database) as store, garbage.ingesting():
            passes = _Passes(settings, store, stop, bundled=bundled)
            return on_each(settings.spool, passes.dry if dry_run else passes.real)

    outcomes = run_until_signalled(work)
    for outcome in outcomes:
        _print_errors(outcome)
    if as_json:
        print_json(_as_json(outcomes, {"dry_run": dry_run, "database": redact(settings.database)}))
    else:
        _print_text(outcomes, "dry run: " if dry_run else "", settings.database if names_database else None)
    reports = [outcome.result for outcome in outcomes if isinstance(outcome.result, IngestReport)]
    if any(outcome.error for outcome in outcomes) or not all(map(_is_complete, reports)):
        raise typer.Exit(1)


class InUse(NamedTuple):
    """A spool that another ``diode-ingest``, usually the daemon, ingests."""

    pid: int | None

    def told(self, database: str | None) -> str:
        """Return one line without the spool's name. With a ``database``, the line says that nothing went there."""
        pid = f" (pid {self.pid})" if self.pid else ""
        said = f"diode-ingest is running on this spool{pid} and moves its records into its own warehouse"
        return f"{said}; this command wrote none of them to {redact(database)}" if database else said


class _Passes:
    """Makes passes over spools; the first spool gets the bundled measurements."""

    def __init__(self, settings: DaemonSettings, store: Store, stop: threading.Event, *, bundled: bool) -> None:
        self._settings = settings
        self._store = store
        self._stop = stop
        self._bundled = bundled

    def dry(self, spool_dir: Path) -> IngestReport:
        from diode_collectors.ingest.report import IngestReport
        from diode_collectors.spool.spool import Spool

        shipped, report = self._shipped(spool_dir), IngestReport()
        if shipped:  # a segment whose name the spool has is not copied there
            report = self._pass(shipped, dry_run=True, leave_out=[path.name for path in Spool(spool_dir).sealed()])
        return report + self._pass(spool_dir, dry_run=True)

    def real(self, spool_dir: Path) -> IngestReport | InUse:
        from diode_collectors.spool.spool import Spool

        spool, shipped = Spool(spool_dir), self._shipped(spool_dir)
        if self._settings.group:
            spool.share_with(self._settings.group)
        if shipped:
            _copy(shipped, spool)
        try:
            with spool.lock():
                return self._pass(spool_dir, dry_run=False)
        except SpoolInUseError as error:
            return InUse(error.pid)

    def _shipped(self, spool_dir: Path) -> Path | None:
        from diode_store.system.resources import bundled_data_dir

        return bundled_data_dir() if self._bundled and spool_dir == self._settings.spool[0] else None

    def _pass(self, folder: Path, *, dry_run: bool, leave_out: Collection[str] = ()) -> IngestReport:
        from diode_collectors.ingest.ingest import ingest_once

        done = 0.0
        with progress("ingesting, %", 100) as advance:

            def show(now: IngestProgress) -> None:
                nonlocal done
                percent = 100 * now.done_bytes / max(now.total_bytes, 1)
                advance(percent - done)
                done = percent

            return ingest_once(
                folder,
                self._store,
                dry_run=dry_run,
                should_stop=self._stop.is_set,
                on_progress=show,
                leave_out=leave_out,
            )


def _copy(shipped: Path, spool: Spool) -> None:
    from diode_collectors.spool.spool import Spool

    segments = Spool(shipped).sealed()
    if not segments:
        raise SpoolError(f"{shipped}: no measurements there; reinstall torch-diode")
    for segment in segments:
        spool.add(segment)


def _is_complete(report: IngestReport) -> bool:
    return not (report.rejected or report.unreadable)


def _print_errors(outcome: _Ended) -> None:
    from diode_collectors.ingest.report import DOUBTS_SHOWN

    if outcome.error:
        print_error(str(outcome.error))
    if outcome.result is None or isinstance(outcome.result, InUse):
        return
    for rejection in outcome.result.rejections[:_LISTED]:
        print_error(str(outcome.spool / str(rejection)))
    for doubt in outcome.result.doubts[:DOUBTS_SHOWN]:
        print_note(f"implausible: {doubt}")
    for op, number in outcome.result.unknown_ops.items():
        print_note(unknown_op_line(op, number))
    for problem in outcome.result.unreadable[:_LISTED]:
        print_error(problem)


def _as_json(outcomes: Sequence[_Ended], how: Mapping[str, object]) -> Mapping[str, object]:
    shown = [{"spool": outcome.spool, **how, **_plain(outcome)} for outcome in outcomes]
    return in_json(shown, {**how, **asdict(_total(outcomes))})


def _plain(outcome: _Ended) -> dict[str, object]:
    from diode_collectors.ingest.report import IngestReport

    if isinstance(outcome.result, InUse):
        return {**asdict(IngestReport()), "ingest_pid": outcome.result.pid}
    return asdict(outcome.result) if outcome.result else {"error": str(outcome.error)}


def _total(outcomes: Sequence[_Ended]) -> IngestReport:
    from diode_collectors.ingest.report import IngestReport

    return sum((each.result for each in outcomes if isinstance(each.result, IngestReport)), IngestReport())


def _print_text(outcomes: Sequence[_Ended], prefix: str, database: str | None) -> None:
    is_only = len(outcomes) == 1
    for outcome in outcomes:
        if isinstance(outcome.result, InUse):
            typer.echo(f"{outcome.spool}: {outcome.result.told(database)}")
        elif outcome.result and not is_only:
            typer.echo(f"{prefix}{outcome.spool}: {_summary(outcome.result)}")
    if is_only:
        if not isinstance(outcomes[0].result, InUse):
            typer.echo(prefix + _summary(_total(outcomes), f" in {outcomes[0].spool}"))
        return
    if all(isinstance(outcome.result, InUse) for outcome in outcomes):
        return
    failed = sum(outcome.error is not None for outcome in outcomes)
    typer.echo(f"{prefix}in all: {_summary(_total(outcomes), failed=failed)}")


def _summary(report: IngestReport, where: str = "", *, failed: int = 0) -> str:
    counts = f"{report.measurements:,} new, {report.duplicates:,} already stored"
    if report.rejected:
        counts += f", {report.rejected:,} rejected"
    new = report.measurements or report.decisions
    if not (report.segments or new or report.duplicates or report.rejected or report.stopped or failed):
        return f"{counts}; nothing waits{where}"
    if report.doubtful:
        counts += f", {counted(report.doubtful, 'implausible value')}"
    ending = "; stopped early, the rest is still in the spool" if report.stopped else ""
    if failed:
        ending += f"; {counted(failed, 'spool')} failed"
    decisions = f"{counted(report.decisions, 'new decision')}, " if report.decisions else ""
    return f"{counts}; {report.timings:,} new timings, {decisions}{counted(report.segments, 'segment')} done{ending}"
