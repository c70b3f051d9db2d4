"""Show the kernels that a model would choose for matrix products, with predicted and measured times."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.console import (
    JsonOption,
    NamedDatabaseOption,
    is_on_command_line,
    make_app,
    print_json,
    print_note,
    print_rows,
    progress,
)
from diode_store.command_line.options import takes_options
from diode_store.command_line.render import counted, problem_text
from diode_store.commands.query import NoSyncOption  # noqa: TC001 - as above
from diode_store.errors import DiodeError, HardwareError, SettingsError
from diode_store.values.checks import INT64

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_integration.decide.decision import PredictedConfig
    from diode_integration.preview import Preview, Previewer
    from diode_store.query.measured import MeasuredProblem
    from diode_store.records import Hardware
    from diode_store.warehouse.hardware import StoredHardware

app = make_app(__doc__)


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """Products that a person asks about."""

    op: Annotated[str | None, typer.Option(metavar="OP", help="Op of one product, such as mm or scaled_mm.")] = None
    b: Annotated[
        int | None, typer.Option("--b", metavar="B", help="Batch size of a bmm, or number of groups.", min=1)
    ] = None
    m: Annotated[int | None, typer.Option("--m", metavar="M", help="Rows of the result.", min=1)] = None
    n: Annotated[int | None, typer.Option("--n", metavar="N", help="Columns of the result.", min=1)] = None
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="Summed dimension.", min=1)] = None
    layout: Annotated[
        str | None,
        typer.Option(metavar="AB", help="Layout of A and B, such as nt: n row-major, t transposed.", show_default="nn"),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="bf16, fp16, fp32, tf32, e4m3, ...", show_default="the op's")
    ] = None
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="OP:MxNxK[:B]",
            help="Product, optionally with words such as /nt or /tf32; can be repeated.",
        ),
    ] = None
    shapeset: Annotated[
        list[Path] | None,
        typer.Option("--shapeset", metavar="FILE", help="Shape set (JSON, CSV or text); can be repeated."),
    ] = None
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family", metavar="NAME", help="Public model with the layers to show (`diode-collect --families`)."
        ),
    ] = None

    def problems(self) -> list[SweepProblem]:
        """Return the different products.

        Raises:
            SettingsError: no product is named, or one cannot be understood.
        """
        from diode_collectors.problems.selection import ProblemRequest, select_problems

        shapes = [*self._typed(), *(self.shape or ())]
        if not (shapes or self.shapeset or self.family):
            raise SettingsError("name a product: --op mm --m 16 --n 4096 --k 4096, --shape, --shapeset or --family")
        is_default = bool(self.shape or self.shapeset or self.family)  # for products whose text names none
        found = select_problems(
            ProblemRequest(
                shapes=tuple(shapes),
                shapesets=tuple(self.shapeset or ()),
                families=tuple(self.family or ()),
                dtypes=(self.dtype,) if self.dtype and is_default else (),
                layouts=(self.layout,) if self.layout and is_default else (),
            )
        )
        for problem in found:
            if problem.memory_bytes > INT64:
                sizes = "--m, --n, --k: " if self.op else ""
                raise SettingsError(f"{sizes}{problem}: the matrices are larger than any memory; give smaller sizes")
        return found

    def _typed(self) -> list[str]:
        sizes = {"--m": self.m, "--n": self.n, "--k": self.k}
        if self.op is None:
            given = [name for name, size in {"--b": self.b, **sizes}.items() if size is not None]
            if given:
                raise SettingsError(f"{given[0]} needs --op too, such as --op mm")
            return []
        missing = [name for name, size in sizes.items() if size is None]
        if missing:
            raise SettingsError(f"--op {self.op} needs {' and '.join(missing)} too")
        batch = "" if self.b is None else f":{self.b}"
        words = "".join(f"/{word}" for word in (self.layout, self.dtype) if word)
        return [f"{self.op}:{self.m}x{self.n}x{self.k}{batch}{words}"]


@app.command(
    epilog="Example: diode predict --op mm --m 16 --n 4096 --k 4096 --layout nt --hardware h200", no_args_is_help=True
)
@takes_options(_Wanted)
def predict(  # noqa: PLR0913 - one parameter per option
    context: typer.Context,
    *,
    options: _Wanted,
    hardware: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Device, here or elsewhere.", show_default="this machine's GPU"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Checkpoint or name of a model.", show_default="the hook's"),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="adaptive, top_k or zero.", show_default="the hook's"),
    ] = None,
    top: Annotated[int, typer.Option(metavar="ROWS", help="Number of kernels to rank for each product.", min=1)] = 10,
    database: NamedDatabaseOption = None,
    as_json: JsonOption = False,
    no_sync: NoSyncOption = False,
) -> None:
    """Show which kernels of each product the hook would keep, and why, without running any.

    Predicted times stand beside those in the warehouse. One product gets a list of its best kernels, several get a line
    each; --json has everything. The prediction ignores what follows a product in a graph.
    """
    problems = [problem.problem() for problem in options.problems()]
    is_typed = is_on_command_line(context, "database")
    url: str | None = None
    stored: list[StoredHardware] = []
    with _noting(is_typed=is_typed):
        url, stored = _warehouse(database)
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


def _device(name: str | None, stored: Sequence[StoredHardware]) -> Hardware:
    """Return the device that a name means. Of several, a measured one comes first, then one that a model covers.

    Raises:
        HardwareError: the name is unknown or ambiguous, or no name is given and this machine has no GPU.
    """
    if name is None:
        from diode_collectors.inductor.device import detect_hardware

        found = detect_hardware("cuda")
        if found is None:
            raise HardwareError("this machine has no GPU; name a device with --hardware, such as h200")
        return found
    from diode_store.devices.known import describe, find_device, known_devices
    from diode_store.exchange.bundled import bundled_devices
    from diode_store.warehouse.hardware import stored_aliases
    from diode_trainer.catalogue import covered_devices

    device = find_device(
        name,
        [row for row in stored if row.measurements],
        covered_devices(),
        bundled_devices(),
        stored=[row.hardware for row in stored],
        aliases=stored_aliases(stored),
    )
    if len(known_devices(name)) > 1:
        print_note(f"hardware: {describe([device])}")
    return device


def _measured(url: str, hardware: Hardware, keys: Sequence[bytes], *, sync: bool) -> dict[bytes, MeasuredProblem]:
    """Return the warehouse's measurements of problems."""
    from diode_store.commands.query import connected
    from diode_store.query.measured import measured_configs

    connection = connected(url, "config_rank", sync=sync)
    ids = connection.execute("SELECT id FROM hardware WHERE key = ?", [hardware.key]).fetchall()
    return measured_configs(connection, ids[0][0], keys) if ids else {}


def _warehouse(database: str | None) -> tuple[str, list[StoredHardware]]:
    """Return the URL of a warehouse that can be read, and its devices."""
    from diode_store.query.named_devices import stored_hardware
    from diode_store.system.settings import default_database_url

    url = database or default_database_url()
    return url, stored_hardware(url)


@contextmanager
def _noting(*, is_typed: bool) -> Iterator[None]:
    """Continue with a note if the warehouse cannot be read; raise if a person typed its URL."""
    try:
        yield
    except DiodeError as error:
        if is_typed:
            raise
        print_note(f"no measured times: {error}")


def _show(found: Sequence[Preview], previewer: Previewer, measured: dict[bytes, MeasuredProblem]) -> None:
    asked = [model for each in found if (model := previewer.asked(each)) is not None]
    names = ", ".join(dict.fromkeys(model.card.name for model in asked)) or "none"
    print_note(f"model: {names}; device: {previewer.hardware.name}; mode: {previewer.mode}")
    if (standing := previewer.standing).is_near:
        print_note(f"no model knows {previewer.hardware.name}, but one knows a similar device: {standing.reason}")
    if len(found) == 1:
        _show_one(found[0], measured.get(found[0].problem.key))
    else:
        _show_all(found, measured)


def _show_one(preview: Preview, measured: MeasuredProblem | None) -> None:
    typer.echo(f"{problem_text(preview.problem.shape)}: {_outcome(preview)}")
    rows = [
        (rank, each.config.describe(), _in_regime(each.predicted_us, measured), _time(measured, each), "yes" * is_kept)
        for rank, each, is_kept in _ranks(preview)
    ]
    if rows:
        print_rows(("rank", "kernel", "predicted us", "measured us", "kept"), rows)
    if measured is not None:
        best, time_us = next(iter(measured.times_us.items()))
        kernels = counted(len(measured.times_us), "kernel")
        where = f"in torch {measured.torch}, regime {measured.regime or 'unknown'}"
        print_note(f"measured: {kernels} {where}; the fastest is {best.describe()}, {time_us:.1f} us")
        _say_regime([measured])
    _say_skew([preview])


def _show_all(found: Sequence[Preview], measured: dict[bytes, MeasuredProblem]) -> None:
    columns = ("problem", "kept", "predicted us", "vendor us", "measured us", "best measured us", "regime", "why")
    rows: list[tuple[Any, ...]] = []
    for each in found:
        known, decision = measured.get(each.problem.key), each.decision
        first = decision.chosen[0] if decision and decision.chosen else None
        times_us = (first.predicted_us if first else None, decision.vendor_us if decision else None)
        predicted = tuple(_in_regime(time_us, known) for time_us in times_us)
        best = known and next(iter(known.times_us.values()))
        timed = first and _time(known, first), best, known and known.regime
        rows.append((problem_text(each.problem.shape), _kept(each), *predicted, *timed, each.reason))
    print_rows(columns, rows, title="What the hook would keep")
    _say_regime(measured.values())
    _say_skew(found)


def _in_regime(predicted_us: float | None, measured: MeasuredProblem | None) -> float | None:
    """Return a prediction in the regime of the times beside it."""
    from diode_trainer.data.regimes import in_regime

    return predicted_us if predicted_us is None or measured is None else in_regime(predicted_us, measured.regime)


def _say_regime(measured: Iterable[MeasuredProblem]) -> None:
    from diode_store.records import WRITE_FLUSH
    from diode_trainer.data.regimes import IN_WRITE_FLUSH

    if WRITE_FLUSH in {each.regime for each in measured}:
        print_note(f"{IN_WRITE_FLUSH}; --json has the deployed ones")


def _say_skew(found: Sequence[Preview]) -> None:
    if any(each.problem.shape.dimension("skew") and each.decision is not None for each in found):
        print_note("a compile does not know the skew of groups: kernels are chosen for groups of equal size")


def _kept(preview: Preview) -> str:
    decision = preview.decision
    if decision is None:
        return ""
    if decision.abstained:
        return "the vendor's" if decision.decided_by == "vendor" else "stock Inductor's"
    more = len(decision.chosen) - 1
    return decision.chosen[0].config.describe() + (f" and {more} more" if more else "")


def _outcome(preview: Preview) -> str:
    """Return one line on the decision."""
    decision = preview.decision
    if decision is None:
        return preview.reason
    if decision.abstained:
        who = "the hook keeps the vendor kernel" if decision.decided_by == "vendor" else "stock Inductor chooses"
        return f"the model abstains and {who}: {decision.reason}"
    return f"keeps {len(decision.chosen)} of {counted(decision.candidates, 'kernel')}: {decision.reason}"


def _ranks(preview: Preview) -> Iterator[tuple[int | None, PredictedConfig, bool]]:
    """Yield each kernel with its rank (None if unknown), and whether the hook would keep it."""
    kept = {choice.config for choice in preview.decision.chosen} if preview.decision else set()
    for place, each in enumerate(preview.ranked, 1):
        yield place if place <= preview.top else None, each, each.config in kept


def _time(measured: MeasuredProblem | None, choice: PredictedConfig) -> float | None:
    return None if measured is None else measured.time_us(choice.config)


def _plain(preview: Preview, previewer: Previewer, measured: MeasuredProblem | None) -> dict[str, Any]:
    """Return everything as JSON values."""
    shape, decision = preview.problem.shape, preview.decision
    best = next(iter(measured.times_us.items())) if measured is not None else None
    model = previewer.asked(preview)
    return {
        "problem": {"op": shape.op, "dtype": shape.arithmetic, "b": shape.b, "m": shape.m, "n": shape.n, "k": shape.k}
        | {"layout": shape.layout, **({"dimensions": dict(shape.dimensions)} if shape.dimensions else {})},
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
