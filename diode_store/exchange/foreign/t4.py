"""T4, the result format of auto-tuners: its fields, and writing our results in it.

T4 is the result schema of https://github.com/odgaard/TuningSchema (branch T4), which Kernel Tuner writes. A file is an
object with ``results`` and ``schema_version``. A result has the ``configuration``, the ``times`` in milliseconds
(``runtimes`` of each run), the ``invalidity``, the ``correctness``, the ``measurements`` (name, value, unit) and the
``objectives``. T4 has no field for problem, hardware or environment.

Our own files have these in a field ``diode``, as the schema allows. At the end of the file, ``diode.measurements`` has
the lines of ``diode_store.exchange.jsonl`` without their choices. A result's ``diode.measurement`` is a position there.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from diode_store.errors import ExportError
from diode_store.exchange.jsonl import kwargs_of, row_of
from diode_store.records import Outcome
from diode_store.values.units import US_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from diode_store.records import Measurement, Timing

SCHEMA_VERSION = "1.0.0"
OWN = "diode"
"""Field of our own files alone."""
OWN_VERSION = 1
TEMPLATE = "template"
"""Parameter of a configuration that names the kernel's template."""
OBJECTIVE = "time"
RUNTIME = "runtime"
"""Measurement in microseconds in our own files: the warehouse's number to the last bit."""
SPREAD = ("p10_us", "p90_us", "repeats")

OUTCOMES: dict[str, Outcome] = {
    "correct": Outcome.OK,
    "compile": Outcome.COMPILE_ERROR,
    "runtime": Outcome.RUNTIME_ERROR,
    "timeout": Outcome.TIMEOUT,
    "correctness": Outcome.WRONG_RESULT,
    # A tuner refuses these before it runs them: too many threads, too much shared memory.
    "constraints": Outcome.OUT_OF_RESOURCES,
}
"""Outcome of each T4 name of invalidity."""
_INVALIDITY = {outcome: name for name, outcome in OUTCOMES.items()} | {Outcome.FAILED_UNSPECIFIED: "runtime"}


def write(
    stream: IO[bytes],
    measurements: Iterable[Measurement],
    on_progress: Callable[[float], None] = lambda _measurements: None,
) -> tuple[int, int]:
    """Write measurements as one T4 file; return the numbers of measurements and timings.

    Raises:
        ExportError: T4 has no room for a kernel's argument.
    """
    heads: list[str] = []
    timings = 0
    stream.write(b'{"results":[')
    for measurement in measurements:
        for timing in measurement.timings:
            text = _dumped(_result(measurement, timing, len(heads)))
            stream.write(f"{',' if timings else ''}\n{text}".encode())
            timings += 1
        head = row_of(measurement)
        del head["choices"]
        heads.append(_dumped(head))
        on_progress(1)
    stream.write(f'\n],"schema_version":"{SCHEMA_VERSION}","{OWN}":{{"version":{OWN_VERSION},"measurements":['.encode())
    stream.write(",\n".join(heads).encode() + b"\n]}}\n")
    return len(heads), timings


def _result(measurement: Measurement, timing: Timing, position: int) -> dict[str, Any]:
    config = timing.config
    arguments = kwargs_of(config)
    if TEMPLATE in arguments:
        raise ExportError(
            f"{config.describe()} has an argument called {TEMPLATE!r}, which T4 cannot hold; export it as jsonl"
        )
    own = {"measurement": position, "outcome": timing.outcome.value, "is_estimate": timing.is_estimate}
    moment = {"timestamp": measurement.measured_at.isoformat()} if measurement.measured_at else {}
    return {
        **moment,
        "configuration": {TEMPLATE: config.template, **arguments},
        # Only the median and percentiles of the runs are kept; `measurements` has them.
        "times": {"runtimes": []},
        "invalidity": _INVALIDITY[timing.outcome],
        "correctness": int(timing.outcome is Outcome.OK),
        "measurements": _measured(timing),
        "objectives": [OBJECTIVE],
        OWN: {**own, "extra": dict(config.extra)} if config.extra else own,
    }


def _measured(timing: Timing) -> list[dict[str, Any]]:
    if timing.runtime_us is None:
        return []
    values = [(OBJECTIVE, timing.runtime_us / US_PER_MS, "ms"), (RUNTIME, timing.runtime_us, "us")]
    values += [(name, getattr(timing, name), "us" if name.endswith("_us") else "") for name in SPREAD]
    return [{"name": name, "value": value, "unit": unit} for name, value, unit in values if value is not None]


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
