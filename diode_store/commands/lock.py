"""Write the fastest known kernel of each problem on one device to a picks file, which the hook obeys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import (
    DatabaseOption,
    HardwareOption,
    JsonOption,
    make_app,
    print_json,
    print_note,
    progress,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted
from diode_store.commands.exporters import measured_devices, only_device
from diode_store.commands.query import ForceOption, OpOption, connected
from diode_store.ops import FUSED_OPS
from diode_store.ops.fused import fused_template
from diode_store.records import REGIME_NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.exchange.picks import Pick, Picks
    from diode_store.warehouse.hardware import StoredHardware
    from diode_store.warehouse.store import Store

app = make_app(__doc__)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Options that choose the timings."""

    torch: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Only timings in this version of torch, such as 2.13.",
            show_default="the only one",
        ),
    ] = None
    environment_id: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Only timings in this environment.", show_default="the only one"),
    ] = None
    op: OpOption = None
    regime: Annotated[
        str | None,
        typer.Option(
            metavar="REGIME",
            help=f"Only timings in this regime: {', '.join(REGIME_NAMES)}. deployed means graph and read_flush.",
            show_default="each problem's nearest to deployment",
        ),
    ] = None


@app.command(epilog="Example: diode lock --hardware h200 --torch 2.13 -o picks.json", no_args_is_help=True)
@takes_options(_Wanted)
def lock(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The picks file to write.")],
    database: DatabaseOption,
    *,
    hardware: HardwareOption = None,
    options: _Wanted,
    allow_changed_template: Annotated[
        bool,
        typer.Option(
            "--allow-changed-template", help="Mark picks in FILE as valid even after a change of their template."
        ),
    ] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the fastest known kernel of each problem, and the kernels within noise of it, to a picks file for review.

    The hook reads the file named by DIODE_PICKS=FILE or by torch_diode.install(picks="FILE"); see docs/picks.md.
    """
    from diode_store.errors import ExportError
    from diode_store.exchange.exporting import refuse_existing
    from diode_store.exchange.picks import Pick, Picks
    from diode_store.query import ranked_ties
    from diode_store.warehouse.store import Store

    refuse_existing(output, force=force)  # fails before the work; writing checks again
    with Store.open(database) as store:
        device = _device(store, hardware)
    print_note(f"hardware: {device.name} ({device.arch}, {device.multiprocessors} multiprocessors)")
    connection = connected(database, "fastest_configs", "config_rank")
    found = ranked_ties.environment_of(connection, device, options.op, options.environment_id, options.torch)
    print_note(f"environment: {found.id}, {found.description}")
    left_out = ranked_ties.left_out(connection, device.id, found.id, options.op, options.regime)
    picks: list[Pick] = []
    with progress("locking, problems") as advance:
        found_ties = ranked_ties.ranked(connection, device.id, found.id, options.op, options.regime, left_out=left_out)
        for item in found_ties:
            advance(1)
            if item.problem.is_unknown:
                why = item.problem.why_no_shape
                left_out[why] = left_out.get(why, 0) + 1
                continue
            picks.append(Pick(item.problem, item.configs, found.environment, item.runtime_us, item.regime))
    notes = [f"{counted(number, 'problem')} left out: {why}" for why, number in left_out.items()]
    if not picks:
        raise ExportError("; ".join(["there is nothing to lock", *notes]))
    notes += _unhashed(picks, allow_changed_template=allow_changed_template)
    made = Picks.of(device.hardware, picks, allow_changed_template=allow_changed_template)
    made.write(output, force=force)
    _print(made, output, notes, as_json=as_json)


def _device(store: Store, name: str | None) -> StoredHardware:
    from diode_store.devices.known import ambiguous
    from diode_store.errors import NO_MEASUREMENTS, ExportError
    from diode_store.warehouse.hardware import match

    if name is None:
        found = measured_devices(store)
        if not found:
            raise ExportError(NO_MEASUREMENTS)
        return only_device(found, "a picks file")
    with store.engine.connect() as connection:
        found = match(connection, name, all_matches=True)
    if len(found) > 1:
        raise ambiguous(name, found)
    return found[0]


def _unhashed(picks: Sequence[Pick], *, allow_changed_template: bool) -> list[str]:
    """Return a line for each template without a recorded source."""
    if allow_changed_template:
        return []
    counts: dict[str, int] = {}
    for pick in picks:
        first = pick.configs[0]
        if not first.is_vendor and pick.template_hashes[first.template] is None:
            counts[first.template] = counts.get(first.template, 0) + 1
    return [
        f"{counted(number, 'pick')} of {uid}{_why_one_torch(uid)} torch {picks[0].environment.torch} alone takes them"
        " (--allow-changed-template lets others)"
        for uid, number in sorted(counts.items())
    ]


def _why_one_torch(uid: str) -> str:
    """Return why one version of torch alone takes picks of a template."""
    if uid in map(fused_template, FUSED_OPS):
        return ": versions of torch may compile the same source differently, so"
    return ": its source was not recorded, so"


def _print(made: Picks, output: Path, notes: Sequence[str], *, as_json: bool) -> None:
    found = list(made.picks.values())
    ties = sum(len(pick.configs) - 1 for pick in found)
    vendor = sum(pick.configs[0].is_vendor for pick in found)
    if as_json:
        counts = {
            "picks": len(found),
            "vendor": vendor,
            "ties": ties,
            "allow_changed_template": made.allow_changed_template,
        }
        print_json({"file": str(output), "hardware": made.device.name, **counts, "notes": list(notes)})
        return
    for line in notes:
        print_note(line)
    typer.echo(
        f"{output}: {counted(len(found), 'pick')} ({vendor:,} of the vendor's kernels) and {counted(ties, 'tie')}"
    )
    typer.echo(f"use it: DIODE_PICKS={output}, or torch_diode.install(picks={str(output)!r})")
