"""Time matrix products on this device and leave the records in the spool.

Each problem goes through torch.compile's max-autotune. The times are those of Inductor's own benchmarker (on a GPU
the fastest of many runs, each after an L2 flush; it does not hide the launch, which small vendor kernels pay for).
On a CPU, ATen and Inductor's C++ kernels are timed, mm and addmm in fp32 only: oneDNN takes over any other dtype.
OMP_NUM_THREADS=1 gives steadier times on a few cores.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_collectors.options import SpoolOption  # noqa: TC001 - likewise
from diode_store.console import JsonOption, make_app, print_error, print_note, print_pairs, print_rows, progress, run
from diode_store.errors import HardwareError, SettingsError, first_line

if TYPE_CHECKING:
    from diode_collectors.shapes import SweepProblem
    from diode_collectors.sweep import SweepReport

_EXAMPLE = "Example: diode-collect --shape mm:512x768x1024 --shape bmm:64x64x128:16"

app = make_app(__doc__, help=__doc__)


class SearchSpace(StrEnum):
    """Which of a template's configs are timed."""

    DEFAULT = "DEFAULT"
    EXHAUSTIVE = "EXHAUSTIVE"


@app.command(help=__doc__, epilog=_EXAMPLE, no_args_is_help=True)
def collect(  # noqa: PLR0913 - one argument an option
    spool: SpoolOption,
    *,
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="OP:MxNxK[:B]", help="A problem (mm, addmm or bmm); can be repeated."),
    ] = None,
    num_shapes: Annotated[int, typer.Option("--num-shapes", min=0, help="Draw so many problems at random.")] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random problems.")] = 0,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="bf16, fp16 or fp32.", show_default="bf16, on a CPU fp32")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cuda, cuda:N or cpu.", show_default="cuda if there is one")
    ] = None,
    search_space: Annotated[
        SearchSpace, typer.Option("--search-space", case_sensitive=False, help="Which Triton configs to time.")
    ] = SearchSpace.DEFAULT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the problems.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time the problems asked for, or list them."""
    from diode_collectors.device import use_torchs_assembler

    use_torchs_assembler()
    from diode_collectors import sweep

    device = device or sweep.default_device()
    sweep.check_device(device)
    problems = _problems(shape or [], num_shapes, seed, dtype or ("fp32" if device == "cpu" else "bf16"), device)
    if dry_run:
        rows = [(p.op, p.dtype, p.b, p.m, p.n, p.k) for p in problems]
        print_rows(
            ("op", "dtype", "b", "m", "n", "k"), rows, as_json=as_json, title=f"{len(rows)} problems on {device}"
        )
        return
    sweep.check_can_be_timed(problems, device)
    report = _sweep(problems, spool, device, search_space.value, seed if num_shapes else None)
    _print(report, spool, as_json=as_json)
    if report.interrupted:
        raise KeyboardInterrupt  # exits as every interrupted command does
    if not report.measured:
        raise HardwareError(f"nothing was measured: of {report.problems} problems {_what_went_wrong(report)}")


def _problems(shapes: list[str], count: int, seed: int, dtype: str, device: str) -> list[SweepProblem]:
    from diode_collectors.shapes import parse_dtype, parse_shape, random_problems
    from diode_collectors.sweep import MAX_FLOPS

    try:
        name = parse_dtype(dtype)
        given = [parse_shape(text, name) for text in shapes]
        drawn = random_problems(count, seed, name, max_flops=MAX_FLOPS[device.partition(":")[0]])
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
    if not given and not drawn:
        raise typer.BadParameter("give problems with --shape or --num-shapes")
    return list(dict.fromkeys([*given, *drawn]))


def _sweep(problems: list[SweepProblem], spool: Path, device: str, search_space: str, seed: int | None) -> SweepReport:
    from diode_collectors.device import detect_hardware
    from diode_collectors.sweep import sweep
    from diode_store.devices import describe

    hardware = detect_hardware(device)
    if hardware is not None:
        print_note(f"timing on {describe([hardware])}")
    options: dict[str, Any] = {"device": device, "search_space": search_space, "seed": seed}
    with progress("Timing problems", len(problems)) as advance:
        return sweep(problems, spool, on_progress=advance, on_failure=_say_failure, **options)


def _say_failure(problem: SweepProblem, error: Exception) -> None:
    print_error(f"{problem}: {type(error).__name__}: {first_line(error)}")


def _print(report: SweepReport, spool: Path, *, as_json: bool) -> None:
    if as_json:
        print_pairs({**vars(report), "spool": str(spool)}, as_json=True)
        return
    lost = f", {report.dropped} records lost" if report.dropped else ""
    print_note(
        f"{report.measured} of {report.problems} problems measured, {report.timings:,} timings in "
        f"{report.seconds:.1f} s ({_what_went_wrong(report)}{lost}); {_what_next(report, spool)}"
    )


def _what_next(report: SweepReport, spool: Path) -> str:
    if not report.measured:
        return "nothing was spooled"
    again = "interrupted; run it again for the rest; " if report.interrupted else ""
    return f"{again}in {spool}, next: diode-ingest --once"


def _what_went_wrong(report: SweepReport) -> str:
    return f"{report.silent} left nothing to time, {report.failed} failed"


def main() -> None:
    """Run ``diode-collect``."""
    run(app)
