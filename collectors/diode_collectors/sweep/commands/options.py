"""Options of a sweep, and the request that they make."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from diode_collectors.problems.drawing import LogNormalSizes, Sizes, UniformSizes
from diode_collectors.problems.problem import DTYPE_NAMES, LAYOUTS
from diode_collectors.problems.search_space import KNOWN
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.sweep.devices import CPU
from diode_collectors.sweep.plan import DEFAULT_CHUNK_SIZE, DEFAULT_MODE, MODES
from diode_store.command_line.console import JsonOption, check_database_url
from diode_store.errors import SettingsError
from diode_store.ops import swept_ops
from diode_store.system.settings import Settings
from diode_store.values.checks import INT64
from diode_store.values.times import parse_duration_s

DRAWN, LOG_NORMAL, RUN, PROBLEMS = "Drawn problems", "Log-normal sizes", "How it runs", "Which problems"
_UNIFORM_ONLY = ("power_of_two", "no_rectangular")


def _seed(value: int) -> int:
    if not -INT64 - 1 <= value <= INT64:
        raise typer.BadParameter(f"{value} does not fit into 64 bits")
    return value


def _list(name: str, help_text: str, metavar: str) -> Any:
    return typer.Option(name, metavar=metavar, help=f"{help_text} A comma list, or repeated.")


def _parameter(dimension: str, what: str) -> Any:
    default = getattr(LogNormalSizes, f"{dimension}_{what}")
    text = {"mean": "Mean", "std": "Standard deviation"}[what]
    help_text = f"{text} of the logarithm of {dimension.upper()}."
    return typer.Option(f"--log-normal-{dimension}-{what}", help=help_text, show_default=f"{default:.4g}")


def _default_spool() -> Path:
    return Settings.from_environment().spool_dir


class TimingOption(StrEnum):
    """Ways to time kernels on a GPU."""

    DEPLOYED = "deployed"
    WRITE_FLUSH = "write-flush"


SpoolOption = Annotated[
    Path,
    typer.Option(
        "--spool",
        metavar="DIR",
        envvar="DIODE_SPOOL",
        help="The spool: the folder where collectors leave their records.",
        default_factory=_default_spool,
        show_default="spool in your data folder",
    ),
]
"""``--spool``, else ``DIODE_SPOOL``, else the user's own spool. The signature takes no default."""


@dataclass(frozen=True)
class SweepOptions:
    """The options of ``diode-collect``, one for each field."""

    spool: SpoolOption
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="OP:MxNxK[:B]", help="A problem, then /LAYOUT or /DTYPE; can be repeated."),
    ] = None
    shapeset: Annotated[
        list[Path] | None,
        typer.Option("--shapeset", metavar="FILE", help="Problems of a shape set: JSON, CSV or text; can be repeated."),
    ] = None
    family: Annotated[
        list[str] | None, _list("--family", "Layers of public models (--families lists them).", "NAME")
    ] = None
    families: Annotated[bool, typer.Option("--families", help="List the families and their sources.")] = False
    num_shapes: Annotated[
        int | None, typer.Option("--num-shapes", min=0, max=1_000_000, help="Draw this many problems.")
    ] = None
    min_size: Annotated[
        int | None,
        typer.Option("--min-size", min=1, max=INT64, help="Smallest size drawn.", show_default="32, log-normal 8"),
    ] = None
    max_size: Annotated[
        int | None,
        typer.Option("--max-size", min=1, max=INT64, help="Largest size drawn.", show_default="4096, log-normal 2^20"),
    ] = None
    power_of_two: Annotated[bool, typer.Option("--power-of-two", help="Draw only powers of two.")] = False
    no_rectangular: Annotated[bool, typer.Option("--no-rectangular", help="Draw only M = N = K.")] = False
    no_odd_sizes: Annotated[bool, typer.Option("--no-odd-sizes", help="Draw only even sizes.")] = False
    log_normal: Annotated[bool, typer.Option("--log-normal", help="Draw log-normal sizes, multiples of 8.")] = False
    log_normal_m_mean: Annotated[float | None, _parameter("m", "mean")] = None
    log_normal_m_std: Annotated[float | None, _parameter("m", "std")] = None
    log_normal_n_mean: Annotated[float | None, _parameter("n", "mean")] = None
    log_normal_n_std: Annotated[float | None, _parameter("n", "std")] = None
    log_normal_k_mean: Annotated[float | None, _parameter("k", "mean")] = None
    log_normal_k_std: Annotated[float | None, _parameter("k", "std")] = None
    op: Annotated[list[str] | None, _list("--op", f"Only these ops ({', '.join(swept_ops())}).", "OP")] = None
    dtype: Annotated[
        list[str] | None, _list("--dtype", f"{', '.join(DTYPE_NAMES)}; else bf16, on a CPU fp32.", "DTYPE")
    ] = None
    layout: Annotated[
        list[str] | None,
        _list("--layout", f"Layouts of A and B: {', '.join(LAYOUTS)}; n row-major, t transposed.", "AB"),
    ] = None
    seed: Annotated[int, typer.Option("--seed", help="Seed of drawn problems and samples.", callback=_seed)] = 0
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Take the I-th of N shares.",
            show_default="of RANK and WORLD_SIZE, or a Slurm array",
        ),
    ] = None
    search_space: Annotated[str, typer.Option("--search-space", metavar="SPACE", help=f"{KNOWN}.")] = "DEFAULT"
    guide: Annotated[
        Path | None,
        typer.Option("--guide", metavar="FILE", help="Kernels that GUIDED:N begins with, as `diode tune` writes them."),
    ] = None
    share_kernels: Annotated[
        bool,
        typer.Option(
            "--share-kernels",
            help="On a GPU: time problems that differ in their sizes alone by the same kernels.",
        ),
    ] = False
    kernels: Annotated[
        Path | None,
        typer.Option(
            "--kernels",
            metavar="DIR",
            help="With --share-kernels: keep them there for the next sweep.",
            file_okay=False,
        ),
    ] = None
    search_mode: Annotated[str, typer.Option("--search-mode", help=f"Mode of torch.compile: {' or '.join(MODES)}.")] = (
        DEFAULT_MODE
    )
    include_tma: Annotated[bool, typer.Option(help="Time persistent TMA kernels where the GPU has TMA.")] = True
    timing: Annotated[
        TimingOption,
        typer.Option(
            "--timing",
            help="On a GPU: as kernels run in a deployed model, or behind a flush that writes, as until November 2026.",
        ),
    ] = TimingOption.DEPLOYED
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="cpu, cuda (all GPUs), cuda:N, or a comma list.",
            show_default="all GPUs, under torchrun cuda:LOCAL_RANK",
        ),
    ] = None
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware", metavar="NAME", help="With --dry-run: plan for a known GPU elsewhere, with 16 cores."
        ),
    ] = None
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", min=1, help="Problems after which records are handed over to diode-ingest.")
    ] = DEFAULT_CHUNK_SIZE
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", metavar="TIME", help="Begin no problem after 90, 90s, 30m or 2h.")
    ] = None
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write a data set: .json, .msgpack or .jsonl. FILE.spool keeps the records.",
        ),
    ] = None
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="URL",
            envvar="DIODE_DATABASE_URL",
            help="Skip what is in this warehouse; what is in the spool is always skipped.",
            callback=check_database_url,
        ),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List problems and choices, estimate the time.")] = False
    as_json: JsonOption = False

    def request(self, default_dtype: str = "bf16") -> ProblemRequest:
        """Return the request for problems.

        Raises:
            SettingsError: options contradict each other.
        """
        return ProblemRequest(
            shapes=tuple(self.shape or ()),
            shapesets=tuple(self.shapeset or ()),
            families=_split(self.family),
            num_shapes=self.num_shapes or 0,
            sizes=self._sizes(),
            seed=self.seed,
            ops=_split(self.op),
            dtypes=_split(self.dtype),
            layouts=_split(self.layout),
            default_dtype=default_dtype,
        )

    @property
    def has_write_flush(self) -> bool:
        """True if kernels are timed behind a flush that writes, which a CPU does not have."""
        return self.timing is TimingOption.WRITE_FLUSH and self.device != CPU

    def has_problems(self) -> bool:
        """True if an option names a source of problems."""
        return bool(self.shape or self.shapeset or self.family or self.num_shapes)

    def time_limit_s(self) -> float | None:
        """Return the time limit in seconds.

        Raises:
            SettingsError: the time limit is not a duration.
        """
        if self.time_limit is None:
            return None
        return parse_duration_s(self.time_limit, "--time-limit")

    def mode(self) -> str:
        """Return the mode of ``torch.compile``.

        Raises:
            SettingsError: the mode does not autotune.
        """
        if self.search_mode not in MODES:
            raise SettingsError(f"unknown --search-mode {self.search_mode!r}; expected {' or '.join(MODES)}")
        return self.search_mode

    def check_hardware(self) -> None:
        """Check that a device elsewhere is only planned for.

        Raises:
            SettingsError: options contradict each other.
        """
        if self.hardware is not None and not self.dry_run:
            raise SettingsError(
                f"--hardware {self.hardware} plans for a device that is not here, so it needs --dry-run; "
                "a sweep times this machine's devices, which --device names"
            )
        if self.hardware is not None and self.device is not None:
            raise SettingsError("--hardware is a device elsewhere, --device one of this machine; drop one")

    def check_kernels(self) -> None:
        """Check that there are shared kernels if a folder is to keep them.

        Raises:
            SettingsError: no kernels are shared.
        """
        if self.kernels is not None and not self.share_kernels:
            raise SettingsError("--kernels keeps kernels that problems share; add --share-kernels")

    def _sizes(self) -> Sizes:
        bounds = {name: value for name in ("min_size", "max_size") if (value := getattr(self, name)) is not None}
        prefix = "log_normal_"
        parameters = {
            field.name.removeprefix(prefix): value
            for field in fields(self)
            if field.name.startswith(prefix) and (value := getattr(self, field.name)) is not None
        }
        if not self.log_normal:
            if parameters:
                named = f"--log-normal-{next(iter(parameters)).replace('_', '-')}"
                raise SettingsError(f"{named} describes log-normal sizes; give --log-normal too")
            return UniformSizes(
                **bounds,
                power_of_two=self.power_of_two,
                rectangular=not self.no_rectangular,
                odd_sizes=not self.no_odd_sizes,
            )
        for name in _UNIFORM_ONLY:
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{option} contradicts --log-normal, whose sizes are any multiples of 8; drop one")
        return LogNormalSizes(**parameters, **bounds)


def _split(values: list[str] | None) -> tuple[str, ...]:
    """Split comma lists. An empty list stays an empty name, which parsing refuses."""
    lists = ([part.strip() for part in value.split(",") if part.strip()] or [""] for value in values or ())
    return tuple(dict.fromkeys(part for parts in lists for part in parts))
