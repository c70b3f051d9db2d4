"""The commands of ``diode db`` that delete, copy and clean up; ``diode_store.commands.db`` names them."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path  # noqa: TC003 - Typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import (
    DatabaseOption,
    JsonOption,
    print_json,
    print_note,
    print_pairs,
    print_rows,
    progress,
)
from diode_store.command_line.render import counted, quantity
from diode_store.commands.context_options import check_time
from diode_store.commands.db_decisions import print_space_note, prune_decisions
from diode_store.commands.query import AllMatchesOption  # noqa: TC001 - Typer reads the annotations when it runs
from diode_store.errors import PruneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Engine

    from diode_store.warehouse.pruning import Plan, Rule
    from diode_store.warehouse.store import Store

YesOption = Annotated[bool, typer.Option("--yes", help="Do it; otherwise only show what would be done.")]
HardwareOption = Annotated[str | None, typer.Option(metavar="NAME", help="Only measurements on this hardware.")]

_SPAN = re.compile(r"(?P<number>[1-9]\d*)(?P<unit>[hdwy])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24, "y": 365 * 24}
_MOST_YEARS = 1_000
_MOST_DIGITS = 9


def span_of(text: str) -> timedelta:
    """Return the length of a span such as ``180d``; h, d, w and y are hours, days, weeks and years of 365 days.

    Raises:
        typer.BadParameter: the text is no span, or longer than a thousand years.
    """
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration; write 12h, 180d, 26w or 1y")
    hours = int(match["number"][:_MOST_DIGITS]) * _HOURS[match["unit"]]
    # The first digits of a longer number already exceed the limit.
    if hours > _MOST_YEARS * _HOURS["y"]:
        raise typer.BadParameter(f"{text!r} is too long; give at most {_MOST_YEARS}y")
    return timedelta(hours=hours)


def _check_span(text: str | None) -> str | None:
    if text is not None:
        span_of(text)
    return text


_OlderThanOption = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="Only data ingested longer ago: 12h, 180d, 26w, 1y.", callback=_check_span),
]
_MeasuredBeforeOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only data measured before this time, in ISO 8601.", callback=check_time),
]
_KeepOption = Annotated[
    int, typer.Option(min=1, max=2**31 - 1, help="Number of the newest to keep for each problem and hardware.")
]


def prune(  # noqa: PLR0913 - one per option
    database: DatabaseOption,
    *,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Delete the hook's decisions instead, by age, hardware, or --all.")
    ] = False,
    superseded: Annotated[bool, typer.Option("--superseded", help="Measurements that others replaced.")] = False,
    replays: Annotated[bool, typer.Option("--replays", help="Timings from Inductor's cache.")] = False,
    flagged: Annotated[bool, typer.Option("--flagged", help="Measurements marked as doubtful.")] = False,
    older_than: _OlderThanOption = None,
    measured_before: _MeasuredBeforeOption = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only measurements of this data set.")] = None,
    hardware: HardwareOption = None,
    all_matches: AllMatchesOption = False,
    keep: _KeepOption = 1,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also delete the last measurement of a problem; with --decisions, delete all."),
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Delete unwanted measurements. Without --yes only list them; without any option list the number of each kind.

    --superseded, --replays and --flagged choose kinds of measurements; the other options narrow the choice. The
    warehouse remembers deleted measurements and refuses them when delivered again; see `diode db tombstones`.

    Example: diode db prune --replays --older-than 180d
    """
    from diode_store.exchange.descriptions import time_of
    from diode_store.warehouse.pruning import Rule

    rule = Rule(
        superseded=superseded,
        replays=replays,
        flagged=flagged,
        older_than=span_of(older_than) if older_than else None,
        measured_before=time_of(measured_before) if measured_before else None,
        dataset=dataset,
        keep=0 if everything else keep,
    )
    named = {"older-than": older_than, "measured-before": measured_before, "dataset": dataset, "hardware": hardware}
    hardware_ids = partial(_hardware_ids, name=hardware, all_matches=all_matches)
    reason = _reason(rule, named, of_decisions=decisions)
    if decisions:
        prune_decisions(database, rule, reason, hardware_ids, yes=yes, as_json=as_json)
    elif rule.is_empty and hardware is None:
        _show_kinds(database, rule, yes=yes, as_json=as_json)
    else:
        _prune_measurements(database, rule, reason, hardware_ids, yes=yes, as_json=as_json)


def _show_kinds(database: str, rule: Rule, *, yes: bool, as_json: bool) -> None:
    """List how many measurements of each kind could be deleted; --yes alone deletes none."""
    if yes:
        raise typer.BadParameter(str(PruneError()))
    from diode_store.warehouse.pruning import plan
    from diode_store.warehouse.store import Store

    rules = {
        "superseded": replace(rule, superseded=True),
        "replays": replace(rule, replays=True),
        "flagged": replace(rule, flagged=True),
    }
    with Store.open(database) as store, store.engine.connect() as connection:
        plans = {kind: plan(connection, of_kind) for kind, of_kind in rules.items()}
    rows = [(f"--{kind}", len(found.ids), found.timings, found.kept) for kind, found in plans.items()]
    print_rows(("option", "measurements", "timings", "kept as last"), rows, as_json=as_json)
    print_note(
        "choose a kind with one of these options, or narrow the choice with --older-than, --dataset or --hardware"
    )


def _prune_measurements(
    database: str,
    rule: Rule,
    reason: str,
    hardware_ids_of: Callable[[Store], list[int] | None],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    from diode_store.warehouse.pruning import missing_dataset, plan
    from diode_store.warehouse.store import Store

    with Store.open(database) as store:
        rule = replace(rule, hardware_ids=hardware_ids_of(store))
        with store.engine.connect() as connection:
            wanted = plan(connection, rule)
            is_missing = rule.dataset is not None and not wanted.ids
            missing = missing_dataset(connection, str(rule.dataset)) if is_missing else None
        if missing:
            print_note(missing)
        if yes:
            _delete(store.engine, wanted, reason, as_json=as_json)
        else:
            _show_plan(wanted, as_json=as_json)


def _hardware_ids(store: Store, *, name: str | None, all_matches: bool) -> list[int] | None:
    from diode_store.warehouse.hardware import describe, match

    if name is None:
        return None
    with store.engine.connect() as connection:
        found = match(connection, name, all_matches=all_matches, measured_first=False)
    print_note(f"hardware: {describe(found)}")
    return [row.id for row in found]


def _reason(rule: Rule, named: dict[str, str | None], *, of_decisions: bool) -> str:
    """Return the reason for the tombstones: the options that chose the measurements."""
    kinds = ["--decisions"] if of_decisions else []
    kinds += [f"--{kind}" for kind in ("superseded", "replays", "flagged") if getattr(rule, kind)]
    filters = [f"--{name} {value}" for name, value in named.items() if value is not None]
    return " ".join(("prune", *kinds, *filters, *(() if rule.keep else ("--all",))))


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    counts = {"dry_run": True, "measurements": len(plan.ids), "timings": plan.timings, "kept_as_last": plan.kept}
    columns = ("hardware", "dataset", "measurements", "timings", "oldest", "newest")
    rows = [tuple(getattr(share, column) for column in columns) for share in plan.shares]
    if as_json:
        print_json({**counts, "shares": [dict(zip(columns, row, strict=True)) for row in rows]})
        return
    if rows:
        print_rows(columns, rows)
    would = f"would delete {_sizes(len(plan.ids), plan.timings)}" if plan.ids else "nothing to delete"
    typer.echo(f"{would}{_kept(plan)}{'; do it with --yes' if plan.ids else ''}")


def _delete(engine: Engine, plan: Plan, reason: str, *, as_json: bool) -> None:
    from diode_store.command_line.stopping import StopSignal
    from diode_store.warehouse.pruning import carry_out

    started = time.monotonic()
    gone: Counter[str] = Counter()
    try:
        # After Ctrl-C amid a transaction nobody would know whether it was committed.
        with StopSignal() as stop, progress("deleting measurements", len(plan.ids)) as advance:
            for measurements, timings in carry_out(engine, plan.ids, reason, advance, stop.check):
                gone.update(measurements=measurements, timings=timings)
    except BaseException:
        print_note(
            f"stopped early; deleted {_sizes(gone['measurements'], gone['timings'])}, and left the rest unchanged"
        )
        raise
    done: dict[str, Any] = {"measurements": gone["measurements"], "timings": gone["timings"], "kept_as_last": plan.kept}
    if as_json:
        print_json({"dry_run": False, **done})
        return
    typer.echo(f"deleted {_sizes(**gone)}{_kept(plan)} ({time.monotonic() - started:.1f} s)")
    if gone:
        print_space_note(engine)


def _sizes(measurements: int = 0, timings: int = 0) -> str:
    return f"{counted(measurements, 'measurement')} with {counted(timings, 'timing')}"


def _kept(plan: Plan) -> str:
    return f"; {counted(plan.kept, 'other')} kept as the last of a problem" if plan.kept else ""


def supersede(
    old: Annotated[str, typer.Argument(metavar="SWEEP", help="The earlier sweep's id.")],
    database: DatabaseOption,
    *,
    by: Annotated[str | None, typer.Option(metavar="SWEEP", help="The sweep that replaces it.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Let the earlier sweep count again.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let a newer sweep replace an earlier one on their common problems; the views then leave out the earlier one.

    Measurements match if problem, hardware and software are equal. Nothing is deleted; use `diode db prune
    --superseded` for that. Without --yes only count the measurements.

    Example: diode db supersede 3c19fabde6d9 --by ef46ba8e1fd4
    """
    from diode_store.warehouse import superseding
    from diode_store.warehouse.database import write_transaction
    from diode_store.warehouse.store import Store

    if (by is None) is not undo:
        raise typer.BadParameter("name the newer sweep with --by, or undo the replacement with --undo")
    with Store.open(database) as store, write_transaction(store.engine) as connection:
        if by is None:
            number = superseding.restore(connection, old)
            print_json({"restored": number}) if as_json else typer.echo(f"{counted(number, 'measurement')} restored")
            return
        found = superseding.count_superseded(connection, old, by)
        if yes:
            superseding.supersede(connection, old, by)
    if as_json:
        print_json({"dry_run": not yes, "measurements": found.measurements, "left": found.left})
        return
    what = f"{counted(found.measurements, 'measurement')}; {found.left:,} that it did not measure again stay"
    typer.echo(f"superseded {what}" if yes else f"would supersede {what}; do it with --yes")


def tombstones(
    database: DatabaseOption,
    *,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget the tombstones, so that deleted measurements can be stored again.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --forget: only tombstones with this reason.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List deleted measurements, which the warehouse refuses when delivered again.

    Example: diode db tombstones --forget --reason "prune --dataset h200-2026-11"
    """
    from diode_store.warehouse import tombstones as stones
    from diode_store.warehouse.database import write_transaction
    from diode_store.warehouse.store import Store

    if reason is not None and not forget:
        raise typer.BadParameter("--reason goes with --forget")
    with Store.open(database) as store:
        if forget:
            with write_transaction(store.engine) as connection:
                number = stones.forget(connection, reason)
        else:
            with store.engine.connect() as connection:
                found = stones.list_tombstones(connection)
    if forget:
        print_json({"forgotten": number}) if as_json else typer.echo(f"{counted(number, 'tombstone')} forgotten")
        return
    rows = [(stone.reason, stone.measurements, stone.first_deleted_at, stone.last_deleted_at) for stone in found]
    if rows or as_json:
        print_rows(("reason", "measurements", "first_deleted_at", "last_deleted_at"), rows, as_json=as_json)
    else:
        print_note("nothing was deleted")


def vacuum(database: DatabaseOption, *, as_json: JsonOption = False) -> None:
    """Return the space of deleted measurements to the disk; SQLite blocks writers meanwhile.

    Example: diode db vacuum
    """
    from diode_store.warehouse.database import describe, size_bytes
    from diode_store.warehouse.store import Store
    from diode_store.warehouse.upkeep import vacuum as vacuum_database

    with Store.open(database) as store:
        before = size_bytes(store.engine)
        vacuum_database(store.engine)
        after, where = size_bytes(store.engine), describe(store.engine)
    if as_json:
        print_json({"database": where, "bytes_before": before, "bytes_after": after})
    elif after is None:
        typer.echo(f"{where}: the space of deleted rows can be used again")
    else:
        typer.echo(f"{where}: {quantity(before, 'B')} -> {quantity(after, 'B')}")


def backup(
    file: Annotated[Path, typer.Argument(help="The copy; must not exist yet.")],
    database: DatabaseOption,
    *,
    as_json: JsonOption = False,
) -> None:
    """Copy the warehouse (SQLite) to FILE, even during use, and check the copy.

    Example: diode db backup /backups/warehouse-$(date +%F).db
    """
    from diode_store.errors import SchemaError
    from diode_store.warehouse import migrate
    from diode_store.warehouse.database import describe, make_engine
    from diode_store.warehouse.upkeep import backup as back_up

    engine = make_engine(database)
    try:
        revision = migrate.current(engine)
        if revision is None:
            raise SchemaError(f"{describe(engine)} holds no warehouse; name another database")
        with progress("copying pages") as advance:
            size = back_up(engine, file, advance)
    finally:
        engine.dispose()
    print_pairs({"file": str(file), "revision": revision, "bytes": size}, as_json=as_json)
