"""Read T4 files: our own, without loss, and those of auto-tuners.

The context names the problem of a tuner's file. All its results make one measurement; a configuration that was timed
again begins another. A bad result makes its whole measurement bad: an imported rest would count twice after the import
of the corrected file.
"""

from __future__ import annotations

import json
import statistics
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

from diode_store.candidates.names import DTYPES, kernel_config
from diode_store.errors import RecordError
from diode_store.exchange import jsonl
from diode_store.exchange.bounds import json_of, read_whole
from diode_store.exchange.context import NO_HARDWARE, BadLine, BadProblem, with_remedy
from diode_store.exchange.foreign.t4 import OBJECTIVE, OUTCOMES, OWN, OWN_VERSION, RUNTIME, SPREAD, TEMPLATE
from diode_store.exchange.jsonl_checks import require, typed
from diode_store.ops import OPS, find_op
from diode_store.records import Outcome
from diode_store.values.checks import shown
from diode_store.values.times import with_zone
from diode_store.values.units import NS_PER_US, US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from diode_store.exchange.context import ImportContext, StatedProblem
    from diode_store.records import Measurement

MICROSECONDS = {"s": US_PER_S, "ms": US_PER_MS, "us": 1.0, "µs": 1.0, "ns": 1 / NS_PER_US}
"""Microseconds in each unit of time."""
_NEEDED = ("op", "m", "n", "k", "dtype")
_FEWEST_FOR_PERCENTILES = 2


class BadResult(BadLine):
    """A bad result; ``line`` is its number in the file, from 1."""

    def at(self, file: str) -> str:
        """Return ``FILE: result N: reason``."""
        return f"{file}: result {self.line}: {self.reason}"


def read(stream: IO[bytes], context: ImportContext) -> Iterator[Measurement | BadLine]:
    """Yield the measurements of a T4 file, or a report of a bad result or of the bad file."""
    try:
        content: dict[str, Any] = typed(json_of(read_whole(stream)), dict, "the file", "a JSON object")
        own = content.get(OWN)
        results = typed(content.get("results"), list, "results", "a list")
        groups = _own_groups(own, results) if own is not None else _groups(results, context)
    except RecordError as error:
        yield BadProblem(1, _with_remedy(error))
        return
    for row, positions in groups:
        yield from _measurement(row, positions, results, context, is_own=own is not None)


_Groups = list[tuple[dict[str, Any], list[int]]]


def _own_groups(own: object, results: Sequence[Any]) -> _Groups:
    """Return the measurements described by our own field, with the positions of their results."""
    content = typed(own, dict, OWN, "an object")
    version = content.get("version")
    if version != OWN_VERSION:
        raise RecordError(f"{OWN}: version {shown(version)} is not {OWN_VERSION}; upgrade torch-diode")
    heads = typed(content.get("measurements"), list, f"{OWN}.measurements", "a list")
    groups: _Groups = [(typed(head, dict, f"{OWN}.measurements[{i}]", "an object"), []) for i, head in enumerate(heads)]
    for number, result in enumerate(results):
        said = result.get(OWN) if isinstance(result, dict) else None
        position = said.get("measurement") if isinstance(said, dict) else None
        if type(position) is not int or not 0 <= position < len(groups):
            raise RecordError(f"result {number + 1}: {OWN}.measurement must be a position in {OWN}.measurements")
        groups[position][1].append(number)
    return groups


def _groups(results: Sequence[Any], context: ImportContext) -> _Groups:
    """Return one measurement of the context's problem, and another for each round of repetitions."""
    if context.hardware is None:
        raise RecordError(NO_HARDWARE.replace("the row", "T4"))
    head = _head(context.problem)
    times = [result.get("timestamp") for result in results if isinstance(result, dict)]
    if context.measured_at is None and any(times):
        head["measured_at"] = min(filter(None, map(_moment, times)), default=None)
    rounds: list[list[int]] = []
    seen: dict[str, int] = {}
    for number, result in enumerate(results):
        configuration = result.get("configuration") if isinstance(result, dict) else None
        key = json.dumps(configuration, sort_keys=True)
        turn = seen[key] = seen.get(key, -1) + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(number)
    # The round's number makes the uids of two equal rounds differ.
    return [({**head, **({"t4_round": turn} if turn else {})}, numbers) for turn, numbers in enumerate(rounds)]


def _head(problem: StatedProblem) -> dict[str, Any]:
    """Return the ``jsonl`` line of a stated problem, without choices."""
    missing = [f"--{name}" for name in _NEEDED if getattr(problem, name) is None]
    if missing:
        raise RecordError(f"T4 does not name its matrix product; give {', '.join(missing)}")
    op, dtype = problem.op or "", DTYPES.get(problem.dtype or "", problem.dtype)
    entry = find_op(op, "give --op as one of:")
    m, n, k = problem.m or 0, problem.n or 0, problem.k or 0
    first = _input(dtype, problem, (m, k), problem.layout[:1])
    second = _input(dtype, problem, (k, n), problem.layout[1:])
    inputs = [first, second] * entry.products
    if entry.has_bias:
        inputs.insert(0, _input(dtype, problem, (m, n), "n"))
    sizes = {"B": problem.b if entry.is_batched else 1, "M": m, "N": n, "K": k}
    return {"op": op, "dtype": dtype, **sizes, "layout": problem.layout, "inputs": inputs}


def _input(dtype: str | None, problem: StatedProblem, size: tuple[int, int], letter: str) -> dict[str, Any]:
    if letter not in {"n", "t"}:
        raise RecordError(f"unknown layout {shown(problem.layout)}; give --layout as nn, nt, tn or tt")
    rows, columns = size
    stride = [columns, 1] if letter == "n" else [1, rows]
    batch = [problem.b] if problem.op and OPS[problem.op].is_batched else []
    return {"dtype": dtype, "size": [*batch, *size], "stride": [*([rows * columns] if batch else []), *stride]}


def _measurement(
    row: Mapping[str, Any], positions: Sequence[int], results: Sequence[Any], context: ImportContext, *, is_own: bool
) -> Iterator[Measurement | BadLine]:
    choices: list[dict[str, Any]] = []
    bad = []
    for position in positions:
        try:
            result = typed(results[position], dict, "it", "an object")
            choices.append(_choice(result, context.problem.template or f"kernel_tuner::{row.get('op')}"))
        except RecordError as error:
            bad.append(BadResult(position + 1, _with_remedy(error)))
    yield from bad
    if bad:
        return
    whole = {**row, "choices": choices}
    if not is_own:
        # The times of a failed result do not matter, so the reader skips them.
        timed = [results[position] for position in positions if _outcome(results[position], {}) is Outcome.OK]
        whole["timing_method"] = {"statistic": "median"} if any(map(_runtimes, timed)) else {}
    try:
        yield jsonl.measurement_of(whole, context)
    except RecordError as error:
        yield BadResult(positions[0] + 1 if positions else 1, _with_remedy(error))


def _choice(result: Mapping[str, Any], template: str) -> dict[str, Any]:
    """Return a result as a choice of ``jsonl``."""
    require(result, ("configuration", "times", "invalidity", "correctness"))
    own = typed(result.get(OWN) or {}, dict, OWN, "an object")
    arguments = dict(typed(result["configuration"], dict, "configuration", "an object"))
    name = typed(arguments.pop(TEMPLATE, template), str, f"configuration.{TEMPLATE}", "text")
    kernel_config(name, arguments)  # the error names a wrong argument
    outcome = _outcome(result, own)
    choice = {"template": name, "kwargs": arguments, "runtime_us": None, "outcome": outcome.value}
    choice["is_estimate"] = own.get("is_estimate", False)
    if own.get("extra"):
        choice["extra"] = own["extra"]
    if outcome is Outcome.OK:
        runtimes = _runtimes(result)
        choice |= _spread_of(runtimes) if runtimes else _measured(result)
    return choice


def _outcome(result: Mapping[str, Any], own: Mapping[str, Any]) -> Outcome:
    invalidity = result["invalidity"]
    if not isinstance(invalidity, str) or invalidity not in OUTCOMES:
        raise RecordError(f"invalidity must be one of {', '.join(OUTCOMES)}, not {shown(invalidity)}")
    found = OUTCOMES[invalidity]
    if found is Outcome.OK and result["correctness"] == 0:
        return Outcome.WRONG_RESULT
    if found is Outcome.RUNTIME_ERROR and own.get("outcome") == Outcome.FAILED_UNSPECIFIED.value:
        return Outcome.FAILED_UNSPECIFIED
    return found


def _runtimes(result: Mapping[str, Any]) -> list[float]:
    """Return the time of each run in milliseconds; empty if the tuner does not list them."""
    times = typed(result["times"] or {}, dict, "times", "an object")
    runs: list[Any] = typed(times.get("runtimes") or [], list, "times.runtimes", "a list")
    if any(type(run) not in (int, float) or not run > 0 for run in runs):
        raise RecordError(f"times.runtimes must be positive milliseconds, not {shown(runs)}")
    return [float(run) for run in runs]


def _measured(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runtime, and its spread if known, from the tuner's summary."""
    rows = typed(result.get("measurements") or [], list, "measurements", "a list")
    measured = {str(row.get("name")): row for row in rows if isinstance(row, dict)}
    found = {name: measured[name].get("value") for name in SPREAD if name in measured}
    if RUNTIME in measured and measured[RUNTIME].get("unit") == "us":
        return {"runtime_us": measured[RUNTIME].get("value"), **found}
    if OBJECTIVE not in measured:
        raise RecordError(f"no times.runtimes and no measurement called {OBJECTIVE!r}; add one of them")
    return {"runtime_us": _microseconds(measured[OBJECTIVE]), **found}


def _microseconds(row: Mapping[str, Any]) -> float:
    value, unit = row.get("value"), row.get("unit")
    if not isinstance(unit, str) or unit not in MICROSECONDS:
        raise RecordError(f"{OBJECTIVE} has the unit {shown(unit)}; known: {', '.join(MICROSECONDS)}")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise RecordError(f"{OBJECTIVE} must be a number, not {shown(value)}")
    return float(value) * MICROSECONDS[unit]


def _spread_of(runs: list[float]) -> dict[str, Any]:
    factor = MICROSECONDS["ms"]
    found: dict[str, Any] = {"runtime_us": statistics.median(runs) * factor, "repeats": len(runs)}
    if len(runs) >= _FEWEST_FOR_PERCENTILES:
        tenths = statistics.quantiles(runs, n=10, method="inclusive")
        found |= {"p10_us": tenths[0] * factor, "p90_us": tenths[-1] * factor}
    return found


def _moment(text: object) -> str | None:
    """Return a time with its zone, UTC unless the text names one; None if the text is no time."""
    try:
        return with_zone(datetime.fromisoformat(str(text))).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return None


def _with_remedy(error: RecordError) -> str:
    return with_remedy(str(error).replace("remove the line", "remove the result"), "correct or remove it")
