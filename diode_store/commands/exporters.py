"""Read from the warehouse and write each export format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from diode_store.command_line.render import counted
from diode_store.commands.query import connected
from diode_store.errors import NO_MEASUREMENTS, ExportError
from diode_store.exchange.formats import ExportFormat, InductorSpace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from diode_store.records import Measurement
    from diode_store.warehouse.hardware import StoredHardware
    from diode_store.warehouse.store import Store

_SINGULAR = {
    "measurements": "measurement",
    "problems": "problem",
    "timings": "timing",
    "entries": "entry",
    "configs": "config",
}


_OBSERVATIONS = """
SELECT
    o.*,
    metrics_json(o.measurement_id, o.config_id) AS metrics,
    m.extra AS measurement_extra,
    h.extra AS hardware_extra,
    e.extra AS environment_extra,
    e.template_hashes,
    p.extra AS problem_extra,
    c.extra AS config_extra
FROM observations AS o
JOIN measurements AS m ON m.id = o.measurement_id
JOIN hardware AS h ON h.id = o.hardware_id
JOIN environments AS e ON e.id = o.environment_id
JOIN problems AS p ON p.id = o.problem_id
JOIN configs AS c ON c.id = o.config_id
WHERE ($1 IS NULL OR o.hardware_id IN (SELECT unnest($1::BIGINT[]))) AND ($2 IS NULL OR o.op = $2)
ORDER BY o.measurement_id, o.config_id
"""
"""Rows of CSV and Parquet; the parameters are the hardware's ids and the op, or NULL for all."""


_LUT = "inductor-lut: "
_FARTHER = "their problem was also timed in a regime nearer to deployment"


@dataclass(frozen=True, kw_only=True)
class LookupTableOptions:
    """Further options of ``inductor-lut``."""

    torch: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help=f"{_LUT}the reader's torch.", show_default="the measured version"),
    ] = None
    environment_id: Annotated[
        int | None,
        typer.Option(metavar="ID", help=f"{_LUT}environment of the timings.", show_default="the only one"),
    ] = None
    top: Annotated[
        int | None,
        typer.Option(metavar="K", min=1, help=f"{_LUT}maximum kernels from a problem's tie set.", show_default="1"),
    ] = None
    device_key: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help=f'{_LUT}device name in the keys; "" means any device.', show_default="its name"
        ),
    ] = None
    tf32: Annotated[bool, typer.Option("--tf32", help=f"{_LUT}take float32 timed with TF32 allowed.")] = False


@dataclass(frozen=True)
class Request:
    """Request for an export."""

    database: str
    store: Store
    fmt: ExportFormat
    name: str
    """Name of the file; its suffix may choose a variant of the format."""
    hardware: list[StoredHardware] | None
    """Hardware to export; None means all."""
    op: str | None
    on_progress: Callable[[float], None]
    lookup_table: LookupTableOptions = LookupTableOptions()
    search_space: InductorSpace = InductorSpace.DEFAULT
    """Search space, for ``max-autotune-solution`` only."""
    on_note: Callable[[str], None] = lambda _note: None

    @property
    def hardware_ids(self) -> list[int] | None:
        """Ids of the hardware, or None for all."""
        return None if self.hardware is None else [row.id for row in self.hardware]

    def has_suffix(self, suffix: str) -> bool:
        """Return whether the file's name ends in ``suffix``, in any case, with or without .gz behind."""
        return self.name.lower().removesuffix(".gz").endswith(suffix)

    def measurements(self) -> Iterator[Measurement]:
        """Yield the requested measurements."""
        from diode_store.warehouse.measurements import iter_measurements

        return iter_measurements(self.store.engine, hardware_ids=self.hardware_ids, op=self.op)


@dataclass(frozen=True)
class Exported:
    """Report of an export."""

    what: str
    """Plural name of the counted things: ``measurements``, or ``problems`` of a lookup table."""
    count: int
    parts: str
    """Plural name of their parts: ``timings``, or ``entries``."""
    part_count: int
    not_held: list[str] = field(default_factory=list)
    """Sentences about what the format cannot hold."""

    def __str__(self) -> str:
        """Return both counts in words."""
        return f"{_counted(self.count, self.what)} with {_counted(self.part_count, self.parts)}"

    def report(self) -> dict[str, Any]:
        """Return the report for a script."""
        return {self.what: self.count, self.parts: self.part_count, "not_held": self.not_held}


def _counted(number: int, plural: str) -> str:
    return f"{number:,} {_SINGULAR[plural] if number == 1 else plural}"


def nothing_to_export(store: Store) -> ExportError:
    """Return the error for an empty export, with what the warehouse holds instead."""
    count = store.counts()["measurements"]
    there_is = f"the warehouse holds {count:,} measurements of other hardware or ops" if count else NO_MEASUREMENTS
    return ExportError(f"there is nothing to export; {there_is}")


def write_stream(request: Request, stream: IO[bytes]) -> Exported:
    """Write any format but Parquet, which needs a path.

    Raises:
        ExportError: the format cannot be made from the warehouse's content.
    """
    return _WRITERS[request.fmt](request, stream)


def write_parquet(request: Request, path: Path) -> Exported:
    """Write the rows of ``observations`` to the file ``path``.

    Raises:
        ExportError: the file cannot be written.
    """
    from diode_store.exchange import parquet

    connection = connected(request.database, "observations")
    # A relation streams; `execute` would copy the whole result before its first batch.
    relation = connection.sql(_OBSERVATIONS, params=_asked(request))
    batches = relation.to_arrow_reader()
    rows = parquet.write(path, batches.schema, batches, request.on_progress)
    return _observations(connection, request, rows)


def _csv(request: Request, stream: IO[bytes]) -> Exported:
    """Write the rows and columns of the Parquet format."""
    from diode_store.exchange.exporting import write_lines
    from diode_store.query.csv_sql import csv_lines

    connection = connected(request.database, "observations")
    lines = csv_lines(connection, _OBSERVATIONS, _asked(request))
    stream.write(next(lines).encode())  # the header
    rows = write_lines(stream, lines, request.on_progress)
    return _observations(connection, request, rows)


def _asked(request: Request) -> list[Any]:
    """Return the parameters of ``_OBSERVATIONS``."""
    return [request.hardware_ids, request.op]


def _observations(connection: Any, request: Request, rows: int) -> Exported:
    """Return the report of an export of ``rows`` timings from the view, which has no superseded ones."""
    where = "($1 IS NULL OR m.hardware_id IN (SELECT unnest($1::BIGINT[]))) AND ($2 IS NULL OR p.op = $2)"
    count = f"""
        SELECT count(*) FILTER (m.superseded_by IS NULL), count(*) FILTER (m.superseded_by IS NOT NULL)
        FROM measurements AS m JOIN problems AS p ON p.id = m.problem_id WHERE {where}
    """  # noqa: S608 - our own text
    [[measurements, superseded]] = connection.execute(count, _asked(request)).fetchall()
    left_out = [f"{counted(superseded, 'superseded measurement')} left out"] if superseded else []
    return Exported("measurements", measurements, "timings", rows, left_out)


def _jsonl(request: Request, stream: IO[bytes]) -> Exported:
    from diode_store.exchange import jsonl

    return _measured(jsonl.write(stream, request.measurements(), request.on_progress))


def _records(request: Request, stream: IO[bytes]) -> Exported:
    from diode_store.exchange import records
    from diode_store.wire.segments import SEALED_SUFFIX

    as_segment = request.has_suffix(SEALED_SUFFIX)
    return _measured(records.write(stream, request.measurements(), request.on_progress, as_segment=as_segment))


def _t4(request: Request, stream: IO[bytes]) -> Exported:
    from diode_store.exchange.foreign import t4

    return _measured(t4.write(stream, request.measurements(), request.on_progress))


def _torch_diode(request: Request, stream: IO[bytes]) -> Exported:
    """Write each problem's timings in the regime nearest to deployment, because a data set has no regimes."""
    from diode_store.exchange.foreign.torch_diode import DatasetBuilder
    from diode_store.exchange.foreign.torch_diode_files import MSGPACK_SUFFIX, packed
    from diode_store.records import regime_rank
    from diode_store.warehouse.measurements import nearest_regimes

    builder = DatasetBuilder()
    count = 0
    nearest = nearest_regimes(request.store.engine, hardware_ids=request.hardware_ids, op=request.op)
    for measurement in request.measurements():
        rank = nearest.get((measurement.hardware.key, measurement.problem.key))
        if rank is not None and regime_rank(measurement.timing_method.regime) > rank:
            builder.not_held.left_out[_FARTHER] += len(measurement.timings)
            continue
        before = builder.not_held.timings
        builder.add(measurement)
        count += builder.not_held.timings > before
        request.on_progress(1)
    held = builder.not_held
    if held.left_out and not held.timings:
        raise ExportError(f"nothing fits into a data set; {'; '.join(held.left_out_lines())}")
    stream.write(packed(builder.dataset, as_msgpack=request.has_suffix(MSGPACK_SUFFIX)))
    return Exported("measurements", count, "timings", held.timings, held.lines())


def _inductor_lut(request: Request, stream: IO[bytes]) -> Exported:
    from diode_store.exchange.foreign import inductor_lut
    from diode_store.query import ranked_ties

    options, device = request.lookup_table, _only_device(request)
    connection = connected(request.database, "fastest_configs", "config_rank")
    environment = ranked_ties.environment_of(connection, device, request.op, options.environment_id)
    version = inductor_lut.torch_version(options.torch or environment.torch)
    key = inductor_lut.device_key(device.hardware) if options.device_key is None else options.device_key
    request.on_note(f"environment: {environment.id}, {environment.description}")
    made = inductor_lut.build(
        ranked_ties.ranked(connection, device.id, environment.id, request.op),
        version,
        key,
        template_hashes=environment.template_hashes,
        top=options.top or 1,
        tf32=options.tf32,
    )
    if made.left_out and not made.table:
        raise ExportError(f"nothing fits into a lookup table; {'; '.join(made.lines())}")
    stream.write(json.dumps(made.table, indent=1).encode() + b"\n")
    notes = made.lines()
    if not environment.torch.startswith(f"{version[0]}.{version[1]}."):
        notes.append(f"measured in torch {environment.torch}: the reader refuses kernels whose template is another")
    entries = sum(map(len, made.table.values()))
    return Exported("problems", len(made.table), "entries", entries, notes)


def _max_autotune_solution(request: Request, stream: IO[bytes]) -> Exported:
    from diode_store.exchange.foreign.max_autotune_solution import SolutionBuilder

    builder = SolutionBuilder(request.search_space)
    for measurement in request.measurements():
        builder.add(measurement)
        request.on_progress(1)
    if builder.left_out and not builder.problems:
        raise ExportError(f"nothing fits into a max-autotune solution; {'; '.join(builder.notes())}")
    stream.write(json.dumps(builder.to_plain(), indent=1).encode() + b"\n")
    configs = sum(map(len, builder.by_op.values()))
    return Exported("measurements", builder.problems, "configs", configs, builder.notes())


def _only_device(request: Request) -> StoredHardware:
    devices = measured_devices(request.store) if request.hardware is None else request.hardware
    if not devices:
        raise nothing_to_export(request.store)
    return only_device(devices, "a lookup table")


def measured_devices(store: Store) -> list[StoredHardware]:
    """Return the devices with measurements."""
    from diode_store.warehouse.hardware import list_hardware

    with store.engine.connect() as connection:
        return [row for row in list_hardware(connection) if row.measurements]


def only_device(devices: Sequence[StoredHardware], what: str) -> StoredHardware:
    """Return the only one of ``devices``.

    Raises:
        ExportError: there are several; the message says that ``what`` is for one device.
    """
    from diode_store.devices.known import describe

    if len(devices) > 1:
        raise ExportError(f"{what} is for one device; it could be any of: {describe(devices)}; name it with --hardware")
    return devices[0]


def _measured(counts: tuple[int, int]) -> Exported:
    return Exported("measurements", counts[0], "timings", counts[1])


_WRITERS: dict[ExportFormat, Callable[[Request, IO[bytes]], Exported]] = {
    ExportFormat.JSONL: _jsonl,
    ExportFormat.RECORDS: _records,
    ExportFormat.CSV: _csv,
    ExportFormat.T4: _t4,
    ExportFormat.TORCH_DIODE: _torch_diode,
    ExportFormat.INDUCTOR_LUT: _inductor_lut,
    ExportFormat.MAX_AUTOTUNE_SOLUTION: _max_autotune_solution,
}
