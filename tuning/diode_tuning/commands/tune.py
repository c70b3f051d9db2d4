"""Measure this machine's GPUs, train a model for them, and have the hook use the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, print_note
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted

if TYPE_CHECKING:
    from diode_collectors.sweep.devices import SweepDevice
    from diode_tuning.job import TuneRequest, TuningJob

app = make_app(__doc__)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of `diode tune`."""

    budget: Annotated[
        str,
        typer.Option(
            "--budget", metavar="TIME", help="Time to measure, such as 90s, 10m or 2h. Training takes longer."
        ),
    ] = "10m"
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="OP:MxNxK[:B]", help="Problem to tune for; can be repeated."),
    ] = None
    shapeset: Annotated[
        list[Path] | None,
        typer.Option("--shapeset", metavar="FILE", help="Shape set (JSON, CSV or text) to tune for."),
    ] = None
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family", metavar="NAME", help="Public model whose layers to tune for (`diode-collect --families`)."
        ),
    ] = None
    from_script: Annotated[
        str | None,
        typer.Option(
            "--from-script",
            metavar="'FILE [ARG...]'",
            help="Python program whose products, convolutions and calls of flex attention to tune for. It runs once,"
            " with --dry-run too.",
        ),
    ] = None
    leave_out: Annotated[
        list[Path] | None,
        typer.Option("--leave-out", metavar="FILE", help="Shape set of problems not to measure, in any dtype."),
    ] = None
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype", metavar="DTYPE", help="Dtype to tune for; by default bf16, fp16 and tf32, on a CPU fp32."
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda:N, or a comma list.", show_default="all GPUs")
    ] = None
    hardware: Annotated[
        str | None, typer.Option("--hardware", metavar="NAME", help="Known GPU elsewhere to plan for, with --dry-run.")
    ] = None
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Train from nothing instead of from the shipped model.")
    ] = False
    folds: Annotated[
        int, typer.Option("--folds", min=0, max=50, help="Folds to evaluate the model by; 0 skips the evaluation.")
    ] = 5
    restart: Annotated[
        bool, typer.Option("--restart", help="Give up an interrupted run and plan a new one; its timings stay.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the plan and how long it takes.")] = False


@app.command(epilog="Example: diode tune --budget 10m")
@takes_options(_Options)
def tune(*, options: _Options, database: DatabaseOption, as_json: JsonOption = False) -> None:
    """Plan, sweep, ingest, train, evaluate, and install the model for `import torch_diode`.

    Without named problems it tunes for a standard set of products. After an interruption the same command goes on. A
    later run adds to the measurements and replaces the model, keeping a copy of the one before.
    """
    from diode_tuning.foreseeing import foresee
    from diode_tuning.job import left_to_do

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
                print_note("interrupted; run the same command to continue")
                raise
        if not as_json:
            _print_done(found[-1])
    if as_json:
        print_json(found)


def _jobs(options: _Options, database: str) -> list[TuningJob]:
    """Return a job for each device model."""
    from diode_collectors.sweep.devices import CORES_ELSEWHERE, find_devices, parse_devices
    from diode_store.errors import SettingsError
    from diode_store.system.settings import data_dir
    from diode_trainer.catalogue import name_for
    from diode_tuning.job import TuningJob, group_devices
    from diode_tuning.plan import DeviceFolder, check_same
    from diode_tuning.program import list_problems

    if options.hardware is not None and not options.dry_run:
        raise typer.BadParameter(
            "a GPU elsewhere cannot be measured; add --dry-run to plan for it", param_hint="--hardware"
        )
    if options.hardware is not None and options.from_script is not None:
        raise typer.BadParameter("--from-script compiles for this machine; leave out --hardware")
    if options.dtype and options.from_script is not None:
        raise typer.BadParameter("--from-script takes the dtypes of the program; leave out --dtype")
    cores = None if options.hardware is None else CORES_ELSEWHERE
    try:
        names = parse_devices(options.device) if options.device else None
        request = _request(options, database)
        found = find_devices(names) if options.hardware is None else [_elsewhere(options.hardware)]
        groups = group_devices(found)
        request = replace(request, budget_s=request.budget_s / len(groups), device_models=len(groups))
        folders = [DeviceFolder(data_dir() / "tune" / name_for(devices[0].hardware.name)) for devices in groups]
        unfinished = [] if options.restart else [run for folder in folders if (run := folder.unfinished())]
        for run in unfinished:
            check_same(run.plan, {"--from-script": request.script})
        if request.script is not None:
            hardware = {devices[0].hardware.key for devices in groups}
            programs = data_dir() / "tune" / "programs"
            listed = list_problems(request.script, programs, hardware, reuse=bool(unfinished))
            shapesets = (*request.targets.shapesets, listed)
            request = replace(request, targets=replace(request.targets, shapesets=shapesets))
        return [TuningJob(devices, request, folder, cores) for devices, folder in zip(groups, folders, strict=True)]
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None


def _elsewhere(name: str) -> SweepDevice:
    """Return a known device to plan for. Of several, one that a model covers comes first."""
    from diode_collectors.sweep.devices import device_elsewhere
    from diode_store.devices.known import describe
    from diode_trainer.catalogue import covered_devices

    device, _ = device_elsewhere(name, covered_devices())
    print_note(f"hardware: {describe([device.hardware])}")
    return device


def _request(options: _Options, database: str) -> TuneRequest:
    """Return the request of the options.

    Raises:
        SettingsError: the options cannot be understood.
    """
    from diode_collectors.problems.selection import ProblemRequest
    from diode_collectors.problems.shapesets import read_shapeset
    from diode_store.errors import SettingsError
    from diode_store.values.times import parse_duration_s
    from diode_tuning.job import TuneRequest
    from diode_tuning.program import resolved

    targets = ProblemRequest(
        shapes=tuple(options.shape or ()),
        shapesets=tuple(options.shapeset or ()),
        families=tuple(options.family or ()),
        dtypes=tuple(options.dtype or ()),
    )
    budget_s = parse_duration_s(options.budget, "--budget")
    if budget_s <= 0:
        raise SettingsError(f"--budget {options.budget} leaves no time to measure; start with 3m, 10m is better")
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
    if found["targets"]:
        typer.echo(f"products  {found['targets']:,}, {found['measured_already']:,} of them measured{left_out}")
    if found["pinned"]:
        typer.echo(f"others    {', '.join(f'{op} {number:,}' for op, number in found['pinned'].items())}")
    more = f", and {found['vendor_problems']:,} with vendor kernels only" if found["vendor_problems"] else ""
    typer.echo(
        f"measures  {counted(len(found['rounds']), 'round')}, about {found['estimate_s']:.0f} s of"
        f" {found['budget_s']:.0f} s: {counted(found['problems'] + found['pinned_problems'], 'problem')} and"
        f" {counted(found['choices'], 'kernel')}{more}"
    )
    models = [*(["products"] if found["model"] else []), *found["other_models"]]
    if models:
        what = f"{'a model' if len(models) == 1 else 'models'} of {', '.join(models)}"
        cores = counted(found["cores"], "core")
        typer.echo(f"then      trains and evaluates {what}, which takes minutes on {cores}")
    if found["model"]:
        typer.echo(f"model     {found['model']}")
    if found["picks"]:
        typer.echo(f"picks     {found['picks']}")
    if found["goes_on_with"]:
        print_note(f"the interrupted run {found['goes_on_with']} would continue")
    for note in filter(None, (found["too_few"], found["too_short"])):
        print_note(note)


def _print_done(found: dict[str, Any]) -> None:
    if found["previous"]:
        typer.echo(f"before {found['previous']}")
    if found["picks"]:
        typer.echo(f"picks  {found['picks']['file']}: {counted(found['picks']['picks'], 'pick')}")
    better = found["better_beginning"]
    if better:
        ours, theirs = (f"{100 * (better[name] - 1):.1f}%" for name in ("regret_at_1", "its_regret_at_1"))
        problems = counted(better["problems"], "problem")
        print_note(
            f"{better['name']}, from which the model started, is better on {problems} of this device: its first choice"
            f" loses {theirs}, the new model's {ours}. Run `diode tune` again to add measurements"
        )
    if found["model"] or found["picks"]:
        typer.echo("use    import torch_diode in a new process; no further setup is needed")
