"""Conversion between upstream torch-diode's data sets and measurements.

Only this module turns upstream's milliseconds into microseconds and back, and upstream's ``inf`` into a failure. The
writer counts what a data set cannot hold. In our own data sets a kernel's ``name`` is its template:
``triton_mm_persistent_tma``.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from diode_store.candidates.names import kernel_config, template_uid
from diode_store.devices.known import describe, known_devices
from diode_store.errors import RecordError
from diode_store.exchange.context import ASSUMED, ESTIMATE_FACTOR, BadProblem, with_remedy
from diode_store.exchange.foreign.torch_diode_types import Dataset, MMShape, TritonGEMMConfig
from diode_store.exchange.not_held import NotHeld, why_not_held
from diode_store.kernels import INT_COLUMNS
from diode_store.ops import OPS, find_op
from diode_store.records import Measurement, Outcome, Problem, Source, TensorSpec, Timing, TimingMethod
from diode_store.timing.plausible import plausible_timings
from diode_store.values.checks import shown
from diode_store.values.keys import content_key
from diode_store.values.units import US_PER_MS
from diode_store.wire import codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from diode_store.exchange.context import BadLine, ImportContext
    from diode_store.exchange.foreign.torch_diode_types import DatasetSolution, TimedConfig
    from diode_store.records import Hardware, KernelConfig, ProblemShape

FAILED = math.inf
"""The ``time`` of a failed kernel."""
TEMPLATE_PREFIX = "triton::"
NAME_PREFIX = "triton_"

_OUT_DTYPE = "out_dtype"
_ALLOW_TF32 = "ALLOW_TF32"
_MM_TEMPLATE = "triton::mm"
_NOT_A_TEMPLATE = "triton_config"
"""Upstream's name for configs from Triton's own tuner."""
_REPLAYS = "replays of cached timings"
_ASSUMED_INPUTS = "inputs are row-major"
_ASSUMED_ESTIMATES = f"times over {ESTIMATE_FACTOR} x the best are first looks"


class DatasetBuilder:
    """Adds measurements to a data set, one at a time."""

    def __init__(self, dataset: Dataset | None = None) -> None:
        """Begin with ``dataset``, or with an empty one."""
        self.dataset = dataset if dataset is not None else Dataset()
        self.not_held = NotHeld()

    def add(self, measurement: Measurement, *, hardware_name: str | None = None) -> None:
        """Add a measurement's timings, under ``hardware_name`` instead of its device's name if given.

        Replays and implausible times are left out: a data set cannot mark them, and a reader would believe them.
        """
        problem, said = measurement.problem, self.not_held
        if measurement.is_replay:
            said.left_out[_REPLAYS] += len(measurement.timings)
            return
        if why := why_not_held(problem):
            said.left_out[why] += len(measurement.timings)
            return
        kept = plausible_timings(measurement)
        if wrong := len(measurement.timings) - len(kept):
            said.left_out["they are implausible"] += wrong
        held = [timing for timing in kept if self._is_held(timing)]
        if not held:
            return
        try:
            shape = shape_of(problem)
        except RecordError as error:
            said.left_out[f"{problem.op}: {error}"] += len(held)
            return
        device = hardware_name or measurement.hardware.name
        for timing in held:
            time = FAILED if timing.runtime_us is None else timing.runtime_us / US_PER_MS
            self.dataset.add_timing(device, problem.op, shape, config_of(timing.config, problem), time)
            said.timings_without.update(_untold_of_timing(timing))
        said.timings += len(held)
        said.measurements_without.update(_untold_of_measurement(measurement))

    def _is_held(self, timing: Timing) -> bool:
        config = timing.config
        if config.is_vendor:
            self.not_held.left_out["vendor kernels (a data set holds Triton kernels only)"] += 1
        elif not config.template.startswith(TEMPLATE_PREFIX) or any(getattr(config, n) is None for n in INT_COLUMNS):
            self.not_held.left_out[f"{config.template} is not a Triton kernel with a tile"] += 1
        else:
            return True
        return False


def dataset_of(measurements: Iterable[Measurement]) -> tuple[Dataset, NotHeld]:
    """Return measurements as a data set, and counts of what did not fit.

    Problems that a data set cannot tell apart become one, with all their timings.
    """
    builder = DatasetBuilder()
    for measurement in measurements:
        builder.add(measurement)
    return builder.dataset, builder.not_held


def shape_of(problem: Problem) -> MMShape:
    """Return upstream's description of a problem; the output of a matrix product is row-major."""
    first, second, _ = OPS[problem.op].operands
    out_dtype = str(dict(problem.scalars).get(_OUT_DTYPE, problem.inputs[first].dtype))
    return upstream_shape(problem.shape, k_dtype=problem.inputs[second].dtype, out_dtype=out_dtype)


def upstream_shape(shape: ProblemShape, *, k_dtype: str | None = None, out_dtype: str | None = None) -> MMShape:
    """Return upstream's description of a shape; B and the output have the dtype of A unless another is given."""
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
    """Return upstream's description of a Triton kernel that has all its fields."""
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
        "the reason of the failure": timing.outcome not in {Outcome.OK, Outcome.FAILED_UNSPECIFIED},
        "the mark of an estimate": timing.is_estimate,
        "repeats and percentiles": (timing.repeats, timing.p10_us, timing.p90_us) != (None, None, None),
        "kernel arguments without a field": bool(timing.config.kwargs),
    }
    return [what for what, is_lost in facts.items() if is_lost]


def _untold_of_measurement(measurement: Measurement) -> list[str]:
    problem = measurement.problem
    assumed = inputs_of(problem.op, shape_of(problem))
    scalars = dict(problem.scalars)
    facts = {
        "strides of inputs that are not row-major": problem.inputs[: len(assumed)] != assumed,
        "inputs without a field": len(problem.inputs) > len(assumed),
        "scalars without a field": bool(scalars.keys() - {_OUT_DTYPE, _ALLOW_TF32}),
        "their flags": bool(measurement.flags),
        "their metrics": bool(measurement.metrics),
    }
    return [what for what, is_lost in facts.items() if is_lost]


def measurements_of(dataset: Dataset, context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield a measurement of each problem, or a report of the bad problem.

    A config that was timed several times makes as many measurements. A data set leaves some facts out, so the reader
    assumes row-major inputs. It takes a name that is no template's as the op's own Triton template. The measurement's
    ``extra["assumed"]`` records the assumptions. The uid is a hash of the problem's content and the context.
    """
    names = list(dict.fromkeys(name for name, _, _ in dataset.problems))
    strangers = [name for name in names if _known_device(name, context) is None]
    positions: Counter[tuple[str, str]] = Counter()
    for number, ((name, op, shape), solution) in enumerate(dataset.problems.items(), 1):
        positions[name, op] += 1
        try:
            device = _device(name, context, names, strangers)
            extra = {} if name == device.name else {"hardware_name": name}
            found = _measurements(device, op, (shape, solution), context, extra)
        except RecordError as error:
            yield BadProblem(number, _told(name, op, positions[name, op], error))
        else:
            yield from found


def _told(name: str, op: str, position: int, error: RecordError) -> str:
    reason = with_remedy(str(error), "correct or remove the problem")
    return f"hardware {shown(name)}, op {shown(op)}, problem {position}: {reason}"


def _known_device(name: str, context: ImportContext) -> Hardware | None:
    """Return the device that a name in the file means without the context's help."""
    for device in (context.hardware, *context.devices):
        if device is not None and name.lower() == device.name.lower():
            return device
    found = known_devices(name)
    return found[0] if len(found) == 1 else None


def _device(name: str, context: ImportContext, names: list[str], strangers: list[str]) -> Hardware:
    """Return a name's device: the context's device for the file's only name, else the named one."""
    if context.hardware is not None and context.replaces_names and len(names) == 1:
        return context.hardware
    found = _known_device(name, context)
    if found is not None:
        return found
    meant = known_devices(name)
    if context.hardware is not None and meant and not context.replaces_names and context.hardware not in meant:
        raise RecordError(f"the name means only: {describe(meant)}; give --hardware with one of these names")
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
    rounds = [_with_estimates(found) for found in rounds]
    problem = _problem(op, shape, is_tf32=is_tf32)
    if any(timing.is_estimate for found in rounds for timing in found.values()):
        assumed.add(_ASSUMED_ESTIMATES)
    extra = {**extra, ASSUMED: sorted(assumed)}
    if not shape.is_row_major:
        extra |= {"out_size": [*shape.out_size], "out_stride": [*shape.out_stride]}
    if not rounds:
        raise RecordError("no config was timed; remove the problem")
    return [_checked(device, problem, tuple(found.values()), context, extra, i) for i, found in enumerate(rounds)]


def _with_estimates(found: dict[bytes, Timing]) -> dict[bytes, Timing]:
    """Mark times much slower than the best: benchmarks give up on such kernels early, which a data set cannot say."""
    limit = ESTIMATE_FACTOR * min((t.runtime_us for t in found.values() if t.runtime_us is not None), default=math.inf)
    return {
        key: timing if timing.runtime_us is None else timing._replace(is_estimate=timing.runtime_us > limit)
        for key, timing in found.items()
    }


def _put(rounds: list[dict[bytes, Timing]], timing: Timing) -> None:
    """Put a timing into the first round without its config."""
    key = timing.config.key
    free = next((found for found in rounds if key not in found), None)
    if free is None:
        free = {}
        rounds.append(free)
    free[key] = timing


def template_of(op: str, name: str) -> str:
    """Return the uid of the template that a config's name means; other names mean the op's own template.

    Raises:
        RecordError: the name is an unknown template's.
    """
    return template_uid(name) if _is_template(name) else own_template(op)


def own_template(op: str) -> str:
    """Return the uid of an op's own Triton template."""
    return OPS[op].template if op in OPS else _MM_TEMPLATE


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
    return Timing(kernel, codec.check_microseconds("time x 1000", timed.time * US_PER_MS))


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
    """Return the measurement, checked by the wire codec."""
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
        RecordError: the op is unknown, or has no batch but the shape has one.
    """
    entry = find_op(op)
    batch = (shape.B,) if entry.is_batched else ()
    if not batch and shape.B != 1:
        batched = " or ".join(other.name for other in OPS.values() if other.is_batched)
        raise RecordError(f"{op} has no batch, but B is {shape.B}; name the op {batched}")
    first = _row_major(shape.M_dtype, (*batch, shape.M, shape.K))
    second = _row_major(shape.K_dtype, (*batch, shape.K, shape.N))
    if entry.has_bias:
        return (_row_major(shape.out_dtype, (*batch, shape.M, shape.N)), first, second)
    return (first, second) * entry.products


def _row_major(dtype: str, size: tuple[int, ...]) -> TensorSpec:
    strides = tuple(math.prod(size[i + 1 :]) for i in range(len(size)))
    return TensorSpec(dtype, size, strides)
