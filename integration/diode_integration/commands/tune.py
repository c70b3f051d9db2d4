"""Measure this machine's GPUs, train a model of them, and have the hook use it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app, print_json, print_note
from diode_store.options import takes_options
from diode_store.render import counted

if TYPE_CHECKING:
    from diode_integration.tuning.job import TuneRequest, TuningJob

app = make_app(__doc__)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """What is tuned for, and how long."""

    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="For measuring: 90s, 10m or 2h. Training comes on top.")
    ] = "10m"
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="OP:MxNxK[:B]", help="Tune for this product; can be repeated."),
    ] = None
    shapeset: Annotated[
        list[Path] | None,
        typer.Option("--shapeset", metavar="FILE", help="For those of a shape set: JSON, CSV or text."),
    ] = None
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="For the layers of a public model (`diode-collect --families`)."),
    ] = None
    from_script: Annotated[
        str | None,
        typer.Option(
            "--from-script",
            metavar="'FILE [ARG...]'",
            help="For what this Python program compiles; it is run once, to its end, with --dry-run too.",
        ),
    ] = None
    leave_out: Annotated[
        list[Path] | None,
        typer.Option("--leave-out", metavar="FILE", help="Measure no product of this shape set, whatever its dtype."),
    ] = None
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="DTYPE", help="In this dtype; else bf16, fp16 and tf32, on a CPU fp32."),
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda:N, or a comma list.", show_default="all GPUs")
    ] = None
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="NAME", help="With --dry-run: a known GPU elsewhere.")
    ] = None
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin with nothing, not with the shipped model.")
    ] = False
    folds: Annotated[int, typer.Option("--folds", min=0, max=50, help="Of judging; 0 leaves it out.")] = 5
    restart: Annotated[
        bool, typer.Option("--restart", help="Give an interrupted run up and plan anew; its timings stay.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and how long it takes.")] = False


@app.command(epilog="Example: diode tune --budget 10m")
@takes_options(_Options)
def tune(*, options: _Options, database: DatabaseOption, as_json: JsonOption = False) -> None:
    """Plan, sweep, ingest, train, judge, and put the model where `import torch_diode` finds it.

    With nothing named it tunes for a standard set of products. Run again after an interruption it goes on; run again
    later it adds to what is measured and replaces its model, keeping the one before.
    """
    from diode_integration.tuning.foreseeing import foresee
    from diode_integration.tuning.job import left_to_do

    found = []
    jobs = _jobs(options, database)
    for job in jobs if options.restart else left_to_do(jobs):
        if options.dry_run:
            found.append(foresee(job, restart=options.restart))
            if not as_json:
                _print_foreseen(found[-1])
            continue
        with job.folder.locked() as lock:
            try:
                found.append(job.run(lock, restart=options.restart, captures=as_json))
            except KeyboardInterrupt:
                print_note("interrupted; the same command goes on from here")
                raise
        if not as_json:
            _print_done(found[-1])
    if as_json:
        print_json(found)


def _jobs(options: _Options, database: str) -> list[TuningJob]:
    """Return a job for each model of device."""
    from diode_collectors.sweep.devices import CORES_ELSEWHERE, device_elsewhere, find_devices, parse_devices
    from diode_integration.tuning.job import TuningJob, group_devices
    from diode_integration.tuning.plan import DeviceFolder, check_same
    from diode_integration.tuning.program import list_products
    from diode_store.errors import SettingsError
    from diode_store.settings import data_dir
    from diode_trainer.catalogue import name_for

    if options.hardware is not None and not options.dry_run:
        raise typer.BadParameter("a GPU elsewhere can only be planned for, with --dry-run", param_hint="--hardware")
    if options.hardware is not None and options.from_script is not None:
        raise typer.BadParameter("a program is compiled for this machine; leave --hardware out")
    if options.dtype and options.from_script is not None:
        raise typer.BadParameter("a program says itself what its products are computed in; leave --dtype out")
    cores = None if options.hardware is None else CORES_ELSEWHERE
    try:
        names = parse_devices(options.device) if options.device else None
        request = _request(options, database)
        found = find_devices(names) if options.hardware is None else [device_elsewhere(options.hardware)[0]]
        groups = group_devices(found)
        request = replace(request, budget_s=request.budget_s / len(groups), device_models=len(groups))
        folders = [DeviceFolder(data_dir() / "tune" / name_for(devices[0].hardware.name)) for devices in groups]
        unfinished = [] if options.restart else [run for folder in folders if (run := folder.unfinished())]
        for run in unfinished:
            check_same(run.plan, {"--from-script": request.script})
        if request.script is not None:
            hardware = {devices[0].hardware.key for devices in groups}
            programs = data_dir() / "tune" / "programs"
            listed = list_products(request.script, programs, hardware, reuse=bool(unfinished))
            shapesets = (*request.targets.shapesets, listed)
            request = replace(request, targets=replace(request.targets, shapesets=shapesets))
        return [TuningJob(devices, request, folder, cores) for devices, folder in zip(groups, folders, strict=True)]
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def _request(options: _Options, database: str) -> TuneRequest:
    """Return what is asked for.

    Raises:
        SettingsError: it cannot be understood.
    """
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.problems.shapesets import read_shapeset
    from diode_integration.tuning.job import TuneRequest
    from diode_integration.tuning.program import resolved
    from diode_store.errors import SettingsError
    from diode_store.times import parse_duration_s

    targets = ProblemRequest(
        shapes=tuple(options.shape or ()),
        shapesets=tuple(options.shapeset or ()),
        families=tuple(options.family or ()),
        dtypes=tuple(options.dtype or ()),
    )
    budget_s = parse_duration_s(options.budget, "--budget")
    if budget_s <= 0:
        raise SettingsError(f"--budget {options.budget} leaves no time to measure; 3m is a beginning, 10m is good")
    return TuneRequest(
        targets,
        budget_s,
        database,
        options.from_scratch,
        options.folds,
        script=None if options.from_script is None else resolved(options.from_script),
        left_out=tuple(problem for path in options.leave_out or () for problem in read_shapeset(path)),
    )


def _print_foreseen(found: dict[str, Any]) -> None:
    gpus = ", ".join(found["devices"])
    typer.echo(f"device    {found['hardware']} ({gpus})")
    left_out = f"; {found['left_out']:,} left out" if found["left_out"] else ""
    typer.echo(f"products  {found['targets']:,}, of which {found['measured_already']:,} are measured{left_out}")
    more = f", and {found['vendor_problems']:,} by the vendor's kernels alone" if found["vendor_problems"] else ""
    typer.echo(
        f"measures  {counted(len(found['rounds']), 'round')}, {found['budget_s']:.0f} s in all: about"
        f" {counted(found['problems'], 'problem')} and {counted(found['choices'], 'kernel')}{more}"
    )
    typer.echo(f"then      trains and judges a model, which takes minutes on {counted(found['cores'], 'core')}")
    typer.echo(f"model     {found['model']}")
    if found["goes_on_with"]:
        print_note(f"an interrupted run, {found['goes_on_with']}, would go on")
    if found["too_few"]:
        print_note(found["too_few"])


def _print_done(found: dict[str, Any]) -> None:
    if found["previous"]:
        typer.echo(f"before {found['previous']}")
    better = found["better_beginning"]
    if better:
        ours, theirs = (f"{100 * (better[name] - 1):.1f}%" for name in ("regret_at_1", "its_regret_at_1"))
        problems = counted(better["problems"], "problem")
        print_note(
            f"on {problems} of this device {better['name']}, which the model began with, loses less by its first"
            f" choice: {theirs} against {ours}. Run `diode tune` again: what it measures is added to what is there"
        )
    typer.echo("use    import torch_diode in the next process; nothing is to be named")
