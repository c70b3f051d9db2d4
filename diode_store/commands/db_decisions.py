"""``diode db prune --decisions``: deletes the hook's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from diode_store.command_line.console import print_json, print_note, progress
from diode_store.command_line.render import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from sqlalchemy import Engine

    from diode_store.warehouse.decision_pruning import DecisionPlan
    from diode_store.warehouse.pruning import Rule
    from diode_store.warehouse.store import Store


def prune_decisions(
    database: str,
    rule: Rule,
    reason: str,
    hardware_ids_of: Callable[[Store], Collection[int] | None],
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete decisions; without ``yes`` only print their number.

    Args:
        database: the warehouse.
        rule: minimum age; ``keep=0`` takes decisions of any age.
        reason: text of their tombstones.
        hardware_ids_of: returns the ids of the hardware, or None for any hardware.
        yes: delete the decisions.
        as_json: print JSON.

    Raises:
        BadParameter: the rule has a condition that only measurements have, or no condition.
    """
    from diode_store.warehouse.decision_pruning import plan_decisions
    from diode_store.warehouse.store import Store

    kinds = rule.superseded or rule.replays or rule.flagged
    if kinds or rule.measured_before is not None or rule.dataset is not None or rule.keep > 1:
        raise typer.BadParameter("--decisions takes only --older-than, --hardware and --all")
    with Store.open(database) as store:
        hardware_ids = hardware_ids_of(store)
        if rule.older_than is None and hardware_ids is None and rule.keep:
            raise typer.BadParameter("choose the decisions with --older-than, --hardware or --all")
        with store.engine.connect() as connection:
            plan = plan_decisions(connection, rule.older_than, hardware_ids)
        if yes:
            _delete(store.engine, plan, reason, as_json=as_json)
        else:
            _show(plan, as_json=as_json)


def print_space_note(engine: Engine) -> None:
    """Say how to return deleted rows' space to the disk, if the database does not do so itself."""
    if engine.dialect.name == "sqlite":
        print_note("the space will be reused; `diode db vacuum` returns it to the disk")


def _show(plan: DecisionPlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"dry_run": True, "decisions": len(plan.ids), "oldest": plan.oldest, "newest": plan.newest})
    elif plan.ids:
        span = f"which came in from {plan.oldest:%Y-%m-%d} to {plan.newest:%Y-%m-%d}"
        typer.echo(f"would delete {counted(len(plan.ids), 'decision')}, {span}; do it with --yes")
    else:
        typer.echo("nothing to delete")


def _delete(engine: Engine, plan: DecisionPlan, reason: str, *, as_json: bool) -> None:
    from diode_store.command_line.stopping import StopSignal
    from diode_store.warehouse.decision_pruning import carry_out_decisions

    gone = 0
    try:
        # As for measurements: after Ctrl-C amid a transaction nobody would know whether it was committed.
        with StopSignal() as stop, progress("deleting decisions", len(plan.ids)) as advance:
            for decisions in carry_out_decisions(engine, plan.ids, reason, advance, stop.check):
                gone += decisions
    except BaseException:
        print_note(f"stopped early; deleted {counted(gone, 'decision')}, and left the rest unchanged")
        raise
    if as_json:
        print_json({"dry_run": False, "decisions": gone})
    else:
        typer.echo(f"deleted {counted(gone, 'decision')}")
        if gone:
            print_space_note(engine)
