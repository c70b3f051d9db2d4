"""Show which kernels a model would choose for matrix products, what it predicts of them, and what was measured."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.checks import INT64
from diode_store.commands.query import NoSyncOption  # noqa: TC001 - likewise
from diode_store.console import (
    JsonOption,
    NamedDatabaseOption,
    is_on_command_line,
    make_app,
    print_json,
    print_note,
    print_rows,
    progress,
)
from diode_store.errors import DiodeError, HardwareError, SettingsError
from diode_store.options import takes_options
from diode_store.render import counted, problem_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_integration.preview import Preview, Previewer
    from diode_integration.stats import PredictedConfig
    from diode_store.query.measured import MeasuredProblem
    from diode_store.records import Hardware

app = make_app(__doc__)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """The products that are asked about."""

    op: Annotated[str | None, typer.Option(metavar="OP", help="One product: mm, addmm, bmm or baddbmm.")] = None
    b: Annotated[int | None, typer.Option("--b", metavar="B", help="Its batch size, of a bmm.", min=1)] = None
    m: Annotated[int | None, typer.Option("--m", metavar="M", help="Rows of the result.", min=1)] = None
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Columns of the result.", min=1)] = None
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="The summed dimension.", min=1)] = None
    layout: Annotated[
        str | None,
        typer.Option(metavar="AB", help="Layout of A and B, such as nt: n row-major, t transposed.", show_default="nn"),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="bf16, fp16, fp32 or tf32.", show_default="bf16")
    ] = None
    shape: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="OP:MxNxK[:B]", help="A product, then /LAYOUT or /DTYPE; can be repeated."),
    ] = None
    shapeset: Annotated[
        list[Path] | None,
        typer.Option("--shapeset", metavar="FILE", help="Those of a shape set: JSON, CSV or text; can be repeated."),
    ] = None
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Layers of a public model (`diode-collect --families`)."),
    ] = None

    def problems(self) -> list[SweepProblem]:
        """Return the different products.

        Raises:
            SettingsError: none is named, or what is cannot be understood.
        """
        from diode_collectors.problems.selection import ProblemRequest, select_problems

        shapes = [*self._typed(), *(self.shape or ())]
        if not (shapes or self.shapeset or self.family):
            raise SettingsError("name a product: --op mm --m 16 --n 4096 --k 4096, --shape, --shapeset or --family")
        found = select_problems(
            ProblemRequest(
                shapes=tuple(shapes),
                shapesets=tuple(self.shapeset or ()),
                families=tuple(self.family or ()),
                dtypes=(self.dtype,) if self.dtype else (),
                layouts=(self.layout,) if self.layout else (),
            )
        )
        for problem in found:
            if problem.memory_bytes > INT64:
                raise SettingsError(f"{problem}: its matrices are larger than any memory")
        return found

    def _typed(self) -> list[str]:
        sizes = {"--m": self.m, "--n": self.n, "--k": self.k}
        if self.op is None:
            given = [name for name, size in {"--b": self.b, **sizes}.items() if size is not None]
            if given:
                raise SettingsError(f"{given[0]} is of a product that --op names, such as --op mm")
            return []
        missing = [name for name, size in sizes.items() if size is None]
        if missing:
            raise SettingsError(f"--op {self.op} needs {' and '.join(missing)} too")
        batch = "" if self.b is None else f":{self.b}"
        return [f"{self.op}:{self.m}x{self.n}x{self.k}{batch}"]


@app.command(
    epilog="Example: diode predict --op mm --m 16 --n 4096 --k 4096 --layout nt --hardware h200", no_args_is_help=True
)
@takes_options(_Wanted)
def predict(  # noqa: PLR0913 - one parameter an option
    context: typer.Context,
    *,
    options: _Wanted,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The device, which need not be here.", show_default="this machine's GPU"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A checkpoint or a model's name.", show_default="as the hook would take"),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="adaptive, top_k or zero.", show_default="as the hook would take"),
    ] = None,
    top: Annotated[int, typer.Option(metavar="ROWS", help="Rank this many kernels of each product.", min=1)] = 10,
    database: NamedDatabaseOption = None,
    as_json: JsonOption = False,
    no_sync: NoSyncOption = False,
) -> None:
    """Show what the hook would keep of each product's kernels, and why, without running any.

    Predicted times are beside those that the warehouse has. Of one product its best kernels are listed, of several a
    line each; --json has everything. What follows a product in a graph is not known here, and does not count.
    """
    problems = [problem.problem() for problem in options.problems()]
    is_typed = is_on_command_line(context, "database")
    url: str | None = None
    stored: list[Hardware] = []
    with _noting(is_typed=is_typed):
        url, stored = _warehouse(database, hardware)
    device = _device(hardware, stored)
    with progress("loading torch and the model"):
        from diode_integration.preview import Previewer

        previewer = Previewer(device, model_path=model, mode=mode, top=top)
    found = []
    with progress("predicting, products", len(problems)) as advance:
        for preview in previewer.previews(problems):
            found.append(preview)
            advance(1)
    measured = {}
    if url is not None:
        with _noting(is_typed=is_typed):
            measured = _measured(url, device, [problem.key for problem in problems], sync=not no_sync)
    if as_json:
        print_json([_plain(each, previewer, measured.get(each.problem.key)) for each in found])
    else:
        _show(found, previewer, measured)


def _device(name: str | None, stored: Sequence[Hardware]) -> Hardware:
    """Return the device that is meant: of those in the warehouse, else of those that are known without one.

    Raises:
        HardwareError: it is unknown or several, or none was named and this machine has no GPU.
    """
    if name is None:
        from diode_collectors.inductor.device import detect_hardware

        found = detect_hardware("cuda")
        if found is None:
            raise HardwareError("this machine has no GPU; name a device with --hardware, such as h200")
        return found
    from diode_store.devices import KNOWN_DEVICES, ambiguous, known_device

    if len(stored) > 1:
        raise ambiguous(name, stored)
    device = stored[0] if stored else known_device(name)
    if device is None:
        names = ", ".join(device.name for device in KNOWN_DEVICES)
        raise HardwareError(f"no device is known by the name {name!r}; known: {names}, and what the warehouse has")
    return device


def _measured(url: str, hardware: Hardware, keys: Sequence[bytes], *, sync: bool) -> dict[bytes, MeasuredProblem]:
    """Return what the warehouse has of problems."""
    from diode_store.commands.query import connected
    from diode_store.query.measured import measured_configs

    connection = connected(url, sync=sync)
    ids = connection.execute("SELECT id FROM hardware WHERE key = ?", [hardware.key]).fetchall()
    return measured_configs(connection, ids[0][0], keys) if ids else {}


def _warehouse(database: str | None, name: str | None) -> tuple[str, list[Hardware]]:
    """Return the URL of a warehouse that can be read, and the devices in it that ``name`` may mean."""
    from diode_store.settings import default_database_url
    from diode_store.warehouse.hardware import match
    from diode_store.warehouse.store import Store

    url = database or default_database_url()
    with Store.open(url) as store, store.engine.connect() as connection, suppress(HardwareError):
        rows = [] if name is None else match(connection, name, all_matches=True)
        return url, [row.hardware for row in rows]
    return url, []


@contextmanager
def _noting(*, is_typed: bool) -> Iterator[None]:
    """Go on without a warehouse that cannot be read, and say so; one that was typed has to be there."""
    try:
        yield
    except DiodeError as error:
        if is_typed:
            raise
        print_note(f"no times are measured: {error}")


def _show(found: Sequence[Preview], previewer: Previewer, measured: dict[bytes, MeasuredProblem]) -> None:
    asked = [model for each in found if (model := previewer.asked(each)) is not None]
    names = ", ".join(dict.fromkeys(model.card.name for model in asked)) or "none"
    print_note(f"model: {names}; device: {previewer.hardware.name}; mode: {previewer.mode}")
    if len(found) == 1:
        _show_one(found[0], measured.get(found[0].problem.key))
    else:
        _show_all(found, measured)


def _show_one(preview: Preview, measured: MeasuredProblem | None) -> None:
    typer.echo(f"{problem_text(preview.problem.shape)}: {_outcome(preview)}")
    rows = [
        (rank, each.config.describe(), each.predicted_us, _time(measured, each), "yes" * is_kept)
        for rank, each, is_kept in _ranks(preview)
    ]
    if rows:
        print_rows(("rank", "kernel", "predicted us", "measured us", "kept"), rows)
    if measured is not None:
        best, time_us = next(iter(measured.times_us.items()))
        kernels = counted(len(measured.times_us), "kernel")
        where = f"in torch {measured.torch}, regime {measured.regime or 'unknown'}"
        print_note(f"measured: {kernels} {where}; the fastest is {best.describe()}, {time_us:.1f} us")


def _show_all(found: Sequence[Preview], measured: dict[bytes, MeasuredProblem]) -> None:
    columns = ("problem", "kept", "predicted us", "vendor us", "measured us", "best measured us", "regime", "why")
    rows: list[tuple[Any, ...]] = []
    for each in found:
        known, decision = measured.get(each.problem.key), each.decision
        first = decision.chosen[0] if decision and decision.chosen else None
        predicted = first and first.predicted_us, decision and decision.vendor_us
        best = known and next(iter(known.times_us.values()))
        timed = first and _time(known, first), best, known and known.regime
        rows.append((problem_text(each.problem.shape), _kept(each), *predicted, *timed, each.reason))
    print_rows(columns, rows, title="What the hook would keep")


def _kept(preview: Preview) -> str:
    decision = preview.decision
    if decision is None:
        return ""
    if decision.abstained:
        return "the vendor's" if decision.decided_by == "vendor" else "stock Inductor's"
    more = len(decision.chosen) - 1
    return decision.chosen[0].config.describe() + (f" and {more} more" if more else "")


def _outcome(preview: Preview) -> str:
    """Return a line for a person."""
    decision = preview.decision
    if decision is None:
        return preview.reason
    if decision.abstained:
        who = "the vendor's kernel is kept" if decision.decided_by == "vendor" else "stock Inductor chooses"
        return f"{who}, as the model abstains: {decision.reason}"
    return f"keeps {len(decision.chosen)} of {counted(decision.candidates, 'kernel')}: {decision.reason}"


def _ranks(preview: Preview) -> Iterator[tuple[int | None, PredictedConfig, bool]]:
    """Yield each kernel with its rank, None where that is not known, and whether it is kept."""
    kept = {choice.config for choice in preview.decision.chosen} if preview.decision else set()
    for place, each in enumerate(preview.ranked, 1):
        yield place if place <= preview.top else None, each, each.config in kept


def _time(measured: MeasuredProblem | None, choice: PredictedConfig) -> float | None:
    return None if measured is None else measured.time_us(choice.config)


def _plain(preview: Preview, previewer: Previewer, measured: MeasuredProblem | None) -> dict[str, Any]:
    """Return everything as plain values."""
    shape, decision = preview.problem.shape, preview.decision
    best = next(iter(measured.times_us.items())) if measured is not None else None
    model = previewer.asked(preview)
    return {
        "problem": {"op": shape.op, "dtype": shape.arithmetic, "b": shape.b, "m": shape.m, "n": shape.n, "k": shape.k}
        | {"layout": shape.layout},
        "hardware": previewer.hardware.name,
        "model": model and model.card.name,
        "model_sha256": model and model.sha256,
        "mode": str(previewer.mode),
        "decided_by": None if decision is None else str(decision.decided_by),
        "reason": preview.reason,
        "candidates": decision.candidates if decision else 0,
        "p_within_2pct": decision.p_within_2pct if decision else None,
        "predicted_vendor_us": decision.vendor_us if decision else None,
        "ranked": [
            {"rank": rank, **_config(each), "measured_us": _time(measured, each), "kept": is_kept}
            for rank, each, is_kept in _ranks(preview)
        ],
        "measured": None
        if measured is None or best is None
        else {
            "torch": measured.torch,
            "regime": measured.regime,
            "kernels": len(measured.times_us),
            "fastest": best[0].describe(),
            "fastest_us": best[1],
        },
    }


def _config(choice: PredictedConfig) -> dict[str, Any]:
    from diode_store.kernels import CONFIG_COLUMNS

    columns = {name: getattr(choice.config, name) for name in CONFIG_COLUMNS}
    return {**columns, "is_vendor": choice.config.is_vendor, "predicted_us": choice.predicted_us}
