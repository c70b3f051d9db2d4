"""Time matrix products, convolutions and attention on this machine's devices.

The records go to the spool, or into a data set.

Each problem goes through torch.compile's max-autotune. A benchmarker times its kernels: it hides the launch, flushes
the L2 cache and takes the median. Every GPU times one problem while the next ones compile. The sweep skips measured
problems, so the same command resumes a stopped sweep. On a CPU it times ATen and Inductor's C++ kernels, for mm and
addmm in fp32 only: oneDNN takes over any other dtype.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_collectors.sweep.commands.options import SweepOptions
from diode_store.command_line.console import JsonOption, is_on_command_line, make_app, print_note, print_rows, run
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted
from diode_store.errors import HardwareError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.already import DoneKey
    from diode_collectors.sweep.devices import SweepDevice
    from diode_collectors.sweep.plan import SweepPlan
    from diode_collectors.sweep.report import Estimate

_EXAMPLE = "Example: diode-collect --family llama3-8b --dtype bf16,fp16 --search-space SAMPLE:72 --dry-run"
_VALIDATION_SHAPES = 30
_CPU_FLOPS = 4e9
"""Limit of drawn problems on a CPU, which computes such a problem in a fraction of a second."""

AgainstOption = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="FILE|DIR",
        help="A data set, an exported file, a spool, or a folder of these; can be repeated.",
    ),
]

app = make_app(__doc__, help=__doc__)


@app.callback(invoke_without_command=True, no_args_is_help=True, epilog=_EXAMPLE)
@takes_options(SweepOptions)
def collect(context: typer.Context, options: SweepOptions) -> None:
    """Time the requested problems, or list them."""
    given = [name for name in context.params if is_on_command_line(context, name)]
    if context.invoked_subcommand is not None:
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise typer.BadParameter(f"put {option} behind {context.invoked_subcommand}")
        return
    if options.families:
        _list_families(as_json=options.as_json)
        return
    _sweep(context, options)


@app.command("create-validation")
@takes_options(SweepOptions)
def create_validation(
    context: typer.Context,
    *,
    against: AgainstOption = None,
    options: SweepOptions,
) -> None:
    """Collect problems that another set does not have in any layout: 30 drawn ones by default.

    Example: diode-collect create-validation --against train.msgpack --num-shapes 100 --output validation.msgpack
    """
    from diode_collectors.sweep.sets import keys_of_shapes, shapes_in, shapes_in_warehouse

    if not against and not options.database:
        raise typer.BadParameter("name what it must be disjoint from, with --against or --database")
    if not options.has_problems() and options.num_shapes is None:
        options = replace(options, num_shapes=_VALIDATION_SHAPES)
    shapes = set()
    for name in against or ():
        if not name or not os.path.exists(name):  # noqa: PTH110 - an empty name would be the current folder
            raise typer.BadParameter(f"--against {name or repr(name)}: there is no such file or folder")
        shapes |= shapes_in(Path(name))
    if options.database:
        shapes |= shapes_in_warehouse(options.database)
    print_note(f"disjoint from {counted(len(shapes), 'problem')}")
    _sweep(context, options, excluded=keys_of_shapes(shapes))


@app.command()
def agreement(
    first: Annotated[Path, typer.Argument(metavar="FIRST", help="A spool, a segment or an exported file.")],
    second: Annotated[Path, typer.Argument(metavar="SECOND", help="Another, of the same problems.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Compare two sweeps of the same problems: the distance of their best times, and whether their winners agree.

    Example: diode-collect agreement sweep-1.jsonl sweep-2.jsonl
    """
    from diode_collectors.spool.reading import measurements_in
    from diode_collectors.sweep.agreement import agreement_of, print_agreement

    for path in (first, second):
        if not path.exists():
            raise typer.BadParameter(f"{path}: there is no such file or folder")
    print_agreement(agreement_of(measurements_in(first), measurements_in(second)), as_json=as_json)


def _sweep(context: typer.Context, options: SweepOptions, excluded: Collection[bytes] = frozenset()) -> None:
    from diode_collectors.problems.guide import check_guide
    from diode_collectors.problems.search_space import SearchSpace
    from diode_collectors.sweep.devices import CORES_ELSEWHERE, check_can_be_timed, users_of, with_kernels
    from diode_collectors.sweep.plan import SweepPlan, recorded_space
    from diode_collectors.sweep.report import Estimate, print_dry_run

    with _bad_usage():
        options.check_hardware()
        spool = _spool(context, options)
        space, limit_s, mode = SearchSpace.parse(options.search_space), options.time_limit_s(), options.mode()
        check_guide(space, options.guide)
        options.check_kernels()
        devices, problems = _devices_and_problems(options, excluded)
    problems, left_out = with_kernels(problems, devices, is_vendor=space.is_vendor)
    if left_out:
        print_note(left_out)
    check_can_be_timed(problems, on_cpu=devices[0].is_cpu)
    cores = CORES_ELSEWHERE if options.hardware is not None else len(os.sched_getaffinity(0))
    shares_kernels = options.share_kernels and not devices[0].is_cpu
    estimate = Estimate(devices, space, include_tma=options.include_tma, cores=cores, shares_kernels=shares_kernels)
    if options.hardware is not None:
        print_dry_run(problems, None, estimate, as_json=options.as_json)
        return
    done = _done(options, spool)
    if options.dry_run:
        recorded = recorded_space(space, include_tma=options.include_tma)
        left = [p for p in problems if not _is_done(p, devices, done, options, recorded)]
        print_dry_run(left, len(problems) - len(left), estimate, as_json=options.as_json)
        return
    plan = SweepPlan(
        problems=tuple(problems),
        spool=spool,
        devices=tuple(device.name for device in devices),
        search_space=space,
        sweep_id=uuid.uuid4().hex,
        include_tma=options.include_tma,
        guide=options.guide,
        share_kernels=shares_kernels,
        kernels=options.kernels if shares_kernels else None,
        write_flush=options.has_write_flush,
        seed=options.seed,
        mode=mode,
        chunk_size=options.chunk_size,
        time_limit_s=limit_s,
        done=done,
        memory_bytes={device.name: device.hardware.memory_bytes for device in devices},
        before=users_of(devices),
    )
    _run(plan, estimate, options)


def _run(plan: SweepPlan, estimate: Estimate, options: SweepOptions) -> None:
    from diode_collectors.spool.reading import measurements_in
    from diode_collectors.sweep.engine import run_sweep
    from diode_collectors.sweep.report import SweepProgress, print_report, what_went_wrong
    from diode_collectors.sweep.sets import measured_since, write_dataset
    from diode_collectors.sweep.statistics import statistics_of

    started = time.time()
    with SweepProgress(plan.problems, estimate, plan.time_limit_s) as listener:
        report = run_sweep(plan, listener)
    if options.output is not None and (report.measured or report.skipped):
        for line in write_dataset(options.output, plan.spool):
            print_note(f"{options.output}: {line}; {plan.spool} has all of it")
        statistics = statistics_of(measurements_in(plan.spool))
    else:
        statistics = statistics_of(measured_since(plan.spool, plan.sweep_id, started))
    where = options.output or plan.spool
    print_report(report, statistics, where, is_file=options.output is not None, as_json=options.as_json)
    if report.interrupted:
        raise KeyboardInterrupt  # exits as every interrupted command does
    if not report.measured and not report.skipped and not report.not_begun:
        problems = counted(report.problems, "problem")
        raise HardwareError(f"nothing was measured: of {problems} {what_went_wrong(report)}")


def _devices_and_problems(
    options: SweepOptions, excluded: Collection[bytes]
) -> tuple[tuple[SweepDevice, ...], list[SweepProblem]]:
    from diode_collectors.problems.drawing import Limits
    from diode_collectors.problems.selection import parse_shard, select_problems, shard, shard_of_environment
    from diode_collectors.sweep.devices import devices_of_rank, find_devices, parse_devices

    index, count = parse_shard(options.shard) if options.shard is not None else shard_of_environment(os.environ)
    names = parse_devices(options.device) if options.device is not None else None
    request = options.request()
    problems = select_problems(request, excluded=excluded)  # first, because finding the devices takes seconds
    devices = found = find_devices(names) if options.hardware is None else (_device_elsewhere(options.hardware),)
    if names is None:
        devices = devices_of_rank(found, os.environ)
    if len(devices) < len(found):
        print_note(f"of {len(found)} GPUs {devices[0].name} is used, by LOCAL_RANK; --device names others")
    if devices[0].is_cpu:
        limits = Limits(flops=_CPU_FLOPS)
        problems = select_problems(replace(options.request("fp32"), limits=limits), excluded=excluded)
    mine = shard(problems, index, count)
    if count > 1:
        print_note(f"shard {index} of {count}: {len(mine):,} of {counted(len(problems), 'problem')}")
    if not mine:
        print_note("nothing to do")
        raise typer.Exit
    return devices, mine


def _device_elsewhere(name: str) -> SweepDevice:
    from diode_collectors.sweep.devices import device_elsewhere
    from diode_store.devices.known import describe, known_devices

    device, others = device_elsewhere(name)
    if not others and len(known_devices(name)) > 1:
        print_note(f"hardware: {describe([device.hardware])}")
    if others:
        print_note(f"{name} may also be {' or '.join(others)}; this plans for the least memory, {device.hardware.name}")
    return device


def _spool(context: typer.Context, options: SweepOptions) -> Path:
    from diode_collectors.sweep.sets import spool_beside

    if options.output is None:
        return options.spool
    if is_on_command_line(context, "spool"):
        raise SettingsError("--output keeps its records in a spool of its own, so drop --spool, or --output")
    return spool_beside(options.output)


def _done(options: SweepOptions, spool: Path) -> set[DoneKey]:
    from diode_collectors.sweep.already import measured_in_spool, measured_in_warehouse

    done = measured_in_spool(spool)  # first, because ingesting moves records to the warehouse
    return done | measured_in_warehouse(options.database) if options.database else done


def _is_done(
    problem: SweepProblem, devices: tuple[SweepDevice, ...], done: set[DoneKey], options: SweepOptions, space: str
) -> bool:
    """Return whether a problem is measured on every model among ``devices``."""
    from diode_collectors.sweep.already import DoneKey

    record, write_flush = problem.problem(), options.has_write_flush
    return done.issuperset(
        DoneKey.of(record, device.hardware, device.environment, space, options.seed, write_flush=write_flush)
        for device in devices
    )


@contextmanager
def _bad_usage() -> Iterator[None]:
    """Turn a ``SettingsError`` of the options into bad usage."""
    try:
        yield
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error


def _list_families(*, as_json: bool) -> None:
    from diode_collectors.problems.families import families, family_problems

    rows = [(family.name, len(family_problems(family.name)), family.source) for family in families()]
    print_rows(("family", "problems", "source"), rows, as_json=as_json)


def main() -> None:
    """Run ``diode-collect``."""
    run(app)
