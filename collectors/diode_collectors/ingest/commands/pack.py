"""Implement `diode-ingest pack`, which packs spools or jsonl files into sealed segments."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import print_note, progress
from diode_store.command_line.render import counted
from diode_store.commands.context_options import (
    DatasetOption,
    EnvironmentOption,
    LicenceOption,
    MeasuredAtOption,
    SearchSpaceOption,
    import_context,
)
from diode_store.system.files import real_path

if TYPE_CHECKING:
    from diode_collectors.ingest.pack import PackReport


def pack(  # noqa: PLR0913 - one argument per option
    files: Annotated[list[Path], typer.Argument(metavar="FILE|DIR...", help="Spools, segments, .jsonl or .jsonl.gz.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the segments.")],
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="NAME", help="Device of the rows that name none.")
    ] = None,
    environment: EnvironmentOption = None,
    measured_at: MeasuredAtOption = None,
    dataset: DatasetOption = None,
    licence: LicenceOption = None,
    search_space: SearchSpaceOption = None,
    *,
    families: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Problem list, as for --shapeset, that gives measurements a family; repeatable."
        ),
    ] = None,
    regime: Annotated[
        str | None, typer.Option(metavar="NAME", help="Regime of measurements that name none, such as write_flush.")
    ] = None,
    anonymous: Annotated[bool, typer.Option("--anonymous", help="Leave out the host and its GPUs.")] = False,
) -> None:
    """Pack spools or jsonl files into sealed segments.

    The segments can be shipped or put into a spool. The same files and options always give the same bytes. --families
    and --regime complete measurements that lack a family or a regime.

    Example: diode-ingest pack --dataset h200-2026-11 --licence Apache-2.0 --anonymous -o data spool
    """
    from diode_collectors.ingest.pack import Unsaid, pack
    from diode_collectors.problems.shapesets import families_of
    from diode_store.devices.known import require_device

    _check_regime(regime)
    device = require_device(hardware, elsewhere="") if hardware else None
    context = import_context(
        device, environment, measured_at, dataset=dataset, licence=licence, search_space=search_space
    )
    with progress("packing measurements") as advance:
        name = dataset or _name_of(files[0])
        unsaid = Unsaid(families_of(families or ()), regime)
        packed = pack(files, output, context, name=name, unsaid=unsaid, anonymous=anonymous, on_progress=advance)
    for path in packed.segments:
        typer.echo(path)
    if families:
        print_note(f"{packed.of_a_family:,} of {counted(packed.measurements, 'measurement')} name a family")
    print_note(_counts(packed))


def _check_regime(regime: str | None) -> None:
    from diode_store.records import DEPLOYED, REGIMES

    if regime is not None and regime not in REGIMES:
        why = f"{DEPLOYED} stands for several regimes" if regime == DEPLOYED else f"unknown: {regime!r}"
        raise typer.BadParameter(f"{why}; name one of: {', '.join(REGIMES)}", param_hint="--regime")


def _counts(packed: PackReport) -> str:
    counts = f"{packed.measurements:,} measurements, {packed.timings:,} timings, {packed.failures:,} of them failures"
    return f"{counts}; {counted(packed.decisions, 'decision')}" if packed.decisions else counts


def _name_of(path: Path) -> str:
    """Return the name for segments from ``path``, even for ``.`` or a hidden folder."""
    return real_path(path).name.lstrip(".").partition(".")[0] or "measurements"
