"""Conversion between upstream torch-diode's data sets and measurements.

The only place where upstream's milliseconds become microseconds and back, and where its ``inf`` is a failure.
What does not fit into a data set is counted, so that a writer can report it. In a data set made here, a kernel's
``name`` is its template: ``triton_mm_persistent_tma``.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diode_store.checks import shown
from diode_store.devices import describe, known_devices
from diode_store.errors import RecordError
from diode_store.exchange.context import BadLine
from diode_store.exchange.torch_diode_types import Dataset, MMShape, TritonGEMMConfig
from diode_store.kernels import INT_COLUMNS
from diode_store.keys import content_key
from diode_store.normalise import kernel_config, template_uid
from diode_store.records import MATMUL_OPERANDS, Measurement, Outcome, Problem, Source, TensorSpec, Timing, TimingMethod
from diode_store.wire import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diode_store.exchange.context import ImportContext
    from diode_store.exchange.torch_diode_types import DatasetSolution, TimedConfig
    from diode_store.records import Hardware, KernelConfig, ProblemShape

MICROSECONDS_PER_TIME = 1000.0
"""A data set's ``time`` is in milliseconds, whatever upstream's documentation says."""
FAILED = math.inf
"""The ``time`` of a kernel that failed."""
TEMPLATE_PREFIX = "triton::"
NAME_PREFIX = "triton_"

_OUT_DTYPE = "out_dtype"
_ALLOW_TF32 = "ALLOW_TF32"
_BATCHED = {"bmm", "baddbmm"}
_OWN_TEMPLATE = {"bmm": "triton::bmm", "baddbmm": "triton::bmm", "mm_plus_mm": "triton::mm_plus_mm"}
_MM_TEMPLATE = "triton::mm"
_NOT_A_TEMPLATE = "triton_config"
"""What upstream calls configs that come from Triton's own tuner."""
_REPLAYS = "replays of cached timings"
_ASSUMED_INPUTS = "inputs are row-major"


@dataclass
class NotHeld:
    """What of some measurements did not fit into a data set."""

    timings: int = 0
    """Timings that are in it."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why a timing is not in it → how many."""
    measurements_without: Counter[str] = field(default_factory=Counter)
    """What is missing of measurements that are in it → of how many."""
    timings_without: Counter[str] = field(default_factory=Counter)
    """What is missing of timings that are in it → of how many."""

    def lines(self) -> list[str]:
        """Return it in sentences, one a line; none if everything is in the data set."""
        measurements = [f"{n} measurements written without {what}" for what, n in self.measurements_without.items()]
        timings = [f"{n} timings written without {what}" for what, n in self.timings_without.items()]
        return [*self.left_out_lines(), *measurements, *timings]

    def left_out_lines(self) -> list[str]:
        """Return in sentences, one a line, which timings are not in the data set at all."""
        return [f"{n} timings left out: {why}" for why, n in self.left_out.items()]


class DatasetBuilder:
    """Adds measurements to a data set, one at a time."""

    def __init__(self, dataset: Dataset | None = None) -> None:
        """Begin with ``dataset``, or with none."""
        self.dataset = dataset if dataset is not None else Dataset()
        self.not_held = NotHeld()

    def add(self, measurement: Measurement, *, hardware_name: str | None = None) -> None:
        """Add a measurement's timings, under another name of its device if one is given.

        Replays are left out: a data set cannot mark them, and a reader would take them for a second measurement.
        """
        problem, said = measurement.problem, self.not_held
        if measurement.is_replay:
            said.left_out[_REPLAYS] += len(measurement.timings)
            return
        held = [timing for timing in measurement.timings if self._is_held(timing)]
        if not held:
            return
        try:
            shape = shape_of(problem)
        except RecordError as error:
            said.left_out[f"{problem.op}: {error}"] += len(held)
            return
        device = hardware_name or measurement.hardware.name
        for timing in held:
            time = FAILED if timing.runtime_us is None else timing.runtime_us / MICROSECONDS_PER_TIME
            self.dataset.add_timing(device, problem.op, shape, config_of(timing.config, problem), time)
            said.timings_without.update(_untold_of_timing(timing))
        said.timings += len(held)
        said.measurements_without.update(_untold_of_measurement(measurement))

    def _is_held(self, timing: Timing) -> bool:
        config = timing.config
        if config.is_vendor:
            self.not_held.left_out["vendor kernels (the layout holds Triton kernels only)"] += 1
        elif not config.template.startswith(TEMPLATE_PREFIX) or any(getattr(config, n) is None for n in INT_COLUMNS):
            self.not_held.left_out[f"{config.template} is not a Triton kernel with a tile"] += 1
        else:
            return True
        return False


def dataset_of(measurements: Iterable[Measurement]) -> tuple[Dataset, NotHeld]:
    """Return measurements as a data set, and what did not fit into it.

    Problems that a data set does not distinguish become one, with their measurements one after the other.
    """
    builder = DatasetBuilder()
    for measurement in measurements:
        builder.add(measurement)
    return builder.dataset, builder.not_held


def shape_of(problem: Problem) -> MMShape:
    """Return a problem as upstream describes it; the output of a matrix product is row-major."""
    first, second, _ = MATMUL_OPERANDS[problem.op]
    out_dtype = str(dict(problem.scalars).get(_OUT_DTYPE, problem.inputs[first].dtype))
    return upstream_shape(problem.shape, k_dtype=problem.inputs[second].dtype, out_dtype=out_dtype)


def upstream_shape(shape: ProblemShape, *, k_dtype: str | None = None, out_dtype: str | None = None) -> MMShape:
    """Return a shape as upstream describes it; B and the output are of the dtype of A unless another is given."""
    return MMShape(
        B=shape.b,
        M=shape.m,
        M_dtype=shape.dtype,
        N=shape.n,
        K=shape.k,
        K_dtype=k_dtype or shape.dtype,
        out_dtype=out_dtype or shape.dtype,
        out_size=(shape.b, shape.m, shape.n),
        out_stride=(shape.m * shape.n, shape.n, 1),
    )


def config_of(config: KernelConfig, problem: Problem) -> TritonGEMMConfig:
    """Return a Triton kernel that has all of upstream's fields as upstream describes it."""
    numbers = {name: getattr(config, name) for name in INT_COLUMNS}
    return TritonGEMMConfig(
        name=config.template.replace(TEMPLATE_PREFIX, NAME_PREFIX),
        grid=1,
        **numbers,
        EVEN_K=problem.shape.k % numbers["block_k"] == 0,
        ALLOW_TF32=bool(config.allow_tf32),
        USE_FAST_ACCUM=bool(config.use_fast_accum),
        ACC_TYPE=config.acc_type or "tl.float32",
    )


def _untold_of_timing(timing: Timing) -> list[str]:
    facts = {
        "why the kernel failed": timing.outcome not in {Outcome.OK, Outcome.FAILED_UNSPECIFIED},
        "that they are estimates": timing.is_estimate,
        "repeats and percentiles": (timing.repeats, timing.p10_us, timing.p90_us) != (None, None, None),
        "arguments of the kernel that have no field": bool(timing.config.kwargs),
    }
    return [what for what, is_lost in facts.items() if is_lost]


def _untold_of_measurement(measurement: Measurement) -> list[str]:
    problem = measurement.problem
    assumed = inputs_of(problem.op, shape_of(problem))
    scalars = dict(problem.scalars)
    facts = {
        "the strides of the inputs, which are not row-major": problem.inputs[: len(assumed)] != assumed,
        "inputs that have no field": len(problem.inputs) > len(assumed),
        "scalars that have no field": bool(scalars.keys() - {_OUT_DTYPE, _ALLOW_TF32}),
        "that they are flagged": bool(measurement.flags),
    }
    return [what for what, is_lost in facts.items() if is_lost]


@dataclass(frozen=True)
class BadProblem(BadLine):
    """A problem of a data set that is not a measurement; ``line`` is its number in the file, from 1."""

    def at(self, file: str) -> str:
        """Return ``FILE: PLACE: reason``; the reason begins with the place."""
        return f"{file}: {self.reason}"


def measurements_of(dataset: Dataset, context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield a measurement of each problem, or what is wrong with the problem.

    A config that was timed several times makes as many measurements. What a data set does not say is assumed, and
    recorded in ``extra["assumed"]`` of the measurement: inputs are row-major, and a name that is not a template's
    means the op's own Triton template. The uid is a hash of the problem's content and the context.
    """
    strangers = [name for name in dataset.hardware if _known_device(name, context) is None]
    number = 0
    for name, ops in dataset.hardware.items():
        for op, problems in ops.operation.items():
            for position, (shape, solution) in enumerate(problems.solution.items(), 1):
                number += 1
                try:
                    device = _device(name, context, list(dataset.hardware), strangers)
                    extra = {} if name == device.name else {"hardware_name": name}
                    found = _measurements(device, op, (shape, solution), context, extra)
                except RecordError as error:
                    yield BadProblem(number, _told(name, op, position, error))
                else:
                    yield from found


def _told(name: str, op: str, position: int, error: RecordError) -> str:
    reason = str(error) if "; " in str(error) else f"{error}; correct or remove the problem"
    return f"hardware {shown(name)}, op {shown(op)}, problem {position}: {reason}"


def _known_device(name: str, context: ImportContext) -> Hardware | None:
    """Return the device that a name in the file says by itself."""
    for device in (context.hardware, *context.devices):
        if device is not None and name.lower() == device.name.lower():
            return device
    found = known_devices(name)
    return found[0] if len(found) == 1 else None


def _device(name: str, context: ImportContext, names: list[str], strangers: list[str]) -> Hardware:
    """Return a name's device: the context's if it is the file's only one, else the one named."""
    if context.hardware is not None and context.replaces_names and len(names) == 1:
        return context.hardware
    found = _known_device(name, context)
    if found is not None:
        return found
    meant = known_devices(name)
    if context.hardware is not None and meant and not context.replaces_names and context.hardware not in meant:
        raise RecordError(f"the name means none but: {describe(meant)}; give --hardware with one of these names")
    if context.hardware is None:
        several = describe(known_devices(name))
        raise RecordError(
            f"the name fits several devices: {several}; give --hardware with one of these names"
            if several
            else "no device is known by this name; give --hardware NAME (`diode hardware list` shows known names)"
        )
    if len(strangers) > 1:
        raise RecordError(
            f"no one device is known by this name, nor by {len(strangers) - 1} others of the file, and they cannot all "
            f"be {context.hardware.name}; split the file and import each part with its --hardware"
        )
    return context.hardware


def _measurements(
    device: Hardware,
    op: str,
    entry: tuple[MMShape, DatasetSolution],
    context: ImportContext,
    extra: dict[str, Any],
) -> list[Measurement]:
    shape, solution = entry
    rounds: list[dict[bytes, Timing]] = []
    assumed = {_ASSUMED_INPUTS}
    is_tf32 = False
    for number, timed in enumerate(solution.timed_configs, 1):
        try:
            template = template_of(op, timed.config.name)
            timing = _timing(template, timed)
        except RecordError as error:
            raise RecordError(f"config {number}: {error}") from error
        is_tf32 |= timed.config.ALLOW_TF32
        if not _is_template(timed.config.name):
            assumed.add(f"{timed.config.name} is {template}")
        _put(rounds, timing)
    problem = _problem(op, shape, is_tf32=is_tf32)
    extra = {**extra, "assumed": sorted(assumed)}
    if not shape.is_row_major:
        extra |= {"out_size": [*shape.out_size], "out_stride": [*shape.out_stride]}
    if not rounds:
        raise RecordError("no config was timed; remove the problem")
    return [_checked(device, problem, tuple(found.values()), context, extra, i) for i, found in enumerate(rounds)]


def _put(rounds: list[dict[bytes, Timing]], timing: Timing) -> None:
    """Put a timing into the first round that does not have its config yet."""
    key = timing.config.key
    free = next((found for found in rounds if key not in found), None)
    if free is None:
        free = {}
        rounds.append(free)
    free[key] = timing


def template_of(op: str, name: str) -> str:
    """Return the uid of the template that a config's name means; a name that is no template's means the op's own.

    Raises:
        RecordError: the name is that of a template, which is unknown.
    """
    return template_uid(name) if _is_template(name) else own_template(op)


def own_template(op: str) -> str:
    """Return the uid of an op's own Triton template."""
    return _OWN_TEMPLATE.get(op, _MM_TEMPLATE)


def _is_template(name: str) -> bool:
    return name.startswith((NAME_PREFIX, TEMPLATE_PREFIX)) and not name.startswith(_NOT_A_TEMPLATE)


def _timing(template: str, timed: TimedConfig) -> Timing:
    config = timed.config
    numbers = {name if name.startswith("num_") else name.upper(): getattr(config, name) for name in INT_COLUMNS}
    flags = {name: getattr(config, name) for name in (_ALLOW_TF32, "USE_FAST_ACCUM", "ACC_TYPE")}
    kernel = kernel_config(template, {**numbers, **flags})
    if timed.time == FAILED:
        return Timing(kernel, None, Outcome.FAILED_UNSPECIFIED)
    if not timed.is_timed:
        raise RecordError(
            f"time must be positive milliseconds, or Infinity for a failure, not {timed.time}; correct it"
        )
    return Timing(kernel, codec.check_microseconds("time x 1000", timed.time * MICROSECONDS_PER_TIME))


def _problem(op: str, shape: MMShape, *, is_tf32: bool) -> Problem:
    inputs = inputs_of(op, shape)
    scalars: dict[str, Any] = {}
    if shape.out_dtype not in {spec.dtype for spec in inputs}:
        scalars[_OUT_DTYPE] = shape.out_dtype
    if is_tf32:
        scalars[_ALLOW_TF32] = True
    return Problem.create(op, inputs, scalars)


def _checked(
    device: Hardware,
    problem: Problem,
    timings: tuple[Timing, ...],
    context: ImportContext,
    extra: dict[str, Any],
    repetition: int,
) -> Measurement:
    """Return the measurement, checked by the one module that knows what a record must be."""
    measured_at = context.measured_at.isoformat() if context.measured_at else None
    told = [device.key.hex(), context.environment.key.hex(), measured_at, context.dataset, repetition]
    rows = [[timing.config.key.hex(), timing.runtime_us] for timing in timings]
    measurement = Measurement(
        uid=content_key("torch-diode", 1, [told, problem.key.hex(), rows]),
        hardware=device,
        environment=context.environment,
        problem=problem,
        timings=timings,
        source=Source.IMPORT,
        measured_at=context.measured_at,
        search_space=context.search_space,
        timing_method=context.timing_method or TimingMethod(),
        dataset=context.dataset,
        licence=context.licence,
        extra=extra,
    )
    return codec.decode(codec.encode(measurement))


def inputs_of(op: str, shape: MMShape) -> tuple[TensorSpec, ...]:
    """Return the row-major inputs of a problem, as far as a data set describes them.

    Raises:
        RecordError: an unknown op, or a batch where the op has none.
    """
    if op not in MATMUL_OPERANDS:
        raise RecordError(f"unknown op {shown(op)}; known ops: {', '.join(sorted(MATMUL_OPERANDS))}")
    batch = (shape.B,) if op in _BATCHED else ()
    if not batch and shape.B != 1:
        raise RecordError(f"{op} has no batch, but B is {shape.B}; name the op bmm or baddbmm")
    first = _row_major(shape.M_dtype, (*batch, shape.M, shape.K))
    second = _row_major(shape.K_dtype, (*batch, shape.K, shape.N))
    if MATMUL_OPERANDS[op][2] is not None:
        return (_row_major(shape.out_dtype, (*batch, shape.M, shape.N)), first, second)
    return (first, second, first, second) if op == "mm_plus_mm" else (first, second)


def _row_major(dtype: str, size: tuple[int, ...]) -> TensorSpec:
    strides = tuple(math.prod(size[i + 1 :]) for i in range(len(size)))
    return TensorSpec(dtype, size, strides)
