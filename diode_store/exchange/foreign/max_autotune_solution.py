"""Max-autotune solutions: the kernels chosen by max-autotune, for upstream's comparison of a model with it.

The reader takes four layouts:

- Triton configs for all ops, from upstream: ``{"config": [...]}``.
- Triton configs by op, from upstream: ``{"mm": {"config": [...]}}``. On each problem, max-autotune's time is then the
  best time of the listed configs.
- A problem beside each config, from the announcement: ``{"configs": [{"M": 1376, "N": 80, "K": 216, …}]}``.
- A table of upstream's collector, which ranks the configs of each problem.

The writer writes the problems, and the same configs by op, which is the part that upstream reads.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diode_store.candidates.default_space import TEMPLATES, GemmConfig, default_configs, largest_blocks, scaled
from diode_store.candidates.names import DTYPES
from diode_store.command_line.render import counted
from diode_store.errors import ImportFileError, RecordError
from diode_store.exchange.bounds import json_of, read_whole
from diode_store.exchange.foreign.torch_diode import config_of, own_template, template_of
from diode_store.exchange.foreign.torch_diode_types import Solution, Table, solution_of
from diode_store.exchange.formats import InductorSpace
from diode_store.exchange.inputs import open_binary
from diode_store.exchange.not_held import why_not_held
from diode_store.kernels import INT_COLUMNS
from diode_store.ops import OPS
from diode_store.timing.plausible import plausible_timings
from diode_store.values.checks import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.exchange.foreign.torch_diode_types import TritonGEMMConfig
    from diode_store.records import Measurement, ProblemShape, Timing

_ANY_LIST = "config"
_PROBLEM_LIST = "configs"
_TABLE = "hardware"
_SIZES = {"B": "b", "M": "m", "N": "n", "K": "k"}
"""Fields of ``ProblemShape``, by their names in files."""
_STATED = {**_SIZES, "op": "op", "dtype": "dtype", "layout": "layout", "tf32": "tf32"}
"""Fields of a problem in files, with those of ``ProblemShape``."""
_NEEDED = ("M", "N", "K", "block_m", "block_n", "block_k")
_KINDS: tuple[tuple[tuple[str, ...], Any, str], ...] = (
    ((*_SIZES, *INT_COLUMNS), int, "a positive whole number"),
    (("op", "dtype", "layout", "name"), str, "text"),
    (("tf32",), bool, "true or false"),
)
_COMMON_NAME = "triton_mm"
"""Upstream's name for the configs of every op."""
_REMEDY = "`diode export --format max-autotune-solution` makes one"


@dataclass(frozen=True)
class Choice:
    """A kernel in a solution, and its problems."""

    numbers: Mapping[str, int]
    """Values of a config's columns; a missing column may have any value."""
    name: str | None = None
    """Upstream's name of the kernel."""
    problem: Mapping[str, object] = field(default_factory=dict)
    """Fields of ``ProblemShape`` that a problem must have."""

    def is_for(self, shape: ProblemShape) -> bool:
        """Return whether the kernel is for this problem."""
        return all(getattr(shape, name) == value for name, value in self.problem.items())

    def template(self, op: str) -> str:
        """Return the template uid that the kernel's name means for an op."""
        return own_template(op) if self.name in (None, _COMMON_NAME) else template_of(op, self.name)

    def variants(self, shape: ProblemShape) -> list[Mapping[str, int]]:
        """Return the numbers as stated, and as Inductor fits them to a problem smaller than the blocks."""
        if not {*GemmConfig._fields} <= self.numbers.keys():
            return [self.numbers]
        config = GemmConfig(*(self.numbers[name] for name in GemmConfig._fields))
        fitted = scaled(config, largest_blocks(shape.m, shape.n, shape.k))._asdict()
        return [self.numbers, {**self.numbers, **fitted}]


@dataclass(frozen=True)
class MaxAutotuneSolution:
    """Kernels chosen by max-autotune."""

    choices: tuple[Choice, ...]

    def of(self, shape: ProblemShape) -> list[Choice]:
        """Return the kernels for a problem."""
        near = self._by_sizes[shape.m, shape.n, shape.k] + self._by_sizes[None, None, None]
        return [choice for choice in near if choice.is_for(shape)]

    @cached_property
    def _by_sizes(self) -> defaultdict[tuple[object, ...], list[Choice]]:
        found: defaultdict[tuple[object, ...], list[Choice]] = defaultdict(list)
        for choice in self.choices:
            found[tuple(choice.problem.get(name) for name in "mnk")].append(choice)
        return found


def read_solution(path: str) -> MaxAutotuneSolution:
    """Read a solution in any of the four layouts.

    Raises:
        ImportFileError: the file cannot be read or holds something else; the message names the file and the place.
    """
    with open_binary(path) as stream:
        try:
            choices = tuple(_choices(json_of(read_whole(stream))))
        except RecordError as error:
            raise ImportFileError(f"{path}: {error}") from error
    if not choices:
        raise ImportFileError(f"{path}: it names no config; {_REMEDY}")
    return MaxAutotuneSolution(choices)


def _choices(data: Any) -> Iterable[Choice]:
    if not isinstance(data, dict):
        raise RecordError(f"it is no max-autotune solution; {_REMEDY}")
    if isinstance(data.get(_ANY_LIST), list):
        return _listed(solution_of(data, Solution), None)
    if isinstance(data.get(_PROBLEM_LIST), list):
        return [_of_problem(entry, number) for number, entry in enumerate(data[_PROBLEM_LIST], 1)]
    if isinstance(data.get(_TABLE), dict):
        return _of_table(Table.from_dict(data))
    by_op = {op: part for op, part in data.items() if isinstance(part, dict) and _ANY_LIST in part}
    if not by_op:
        raise RecordError(f"it is no max-autotune solution; {_REMEDY}")
    return [
        choice
        for op, part in by_op.items()
        for choice in _listed(solution_of(part, Solution, f"op {shown(op)}"), _known_op(op, f"op {shown(op)}"))
    ]


def _listed(solution: Solution, op: str | None) -> list[Choice]:
    return [Choice(_numbers(config), config.name, {} if op is None else {"op": op}) for config in solution.config]


def _of_table(table: Table) -> list[Choice]:
    choices = []
    for (_, op, problem), solution in table.problems.items():
        sizes = {field: getattr(problem, name) for name, field in _SIZES.items()}
        stated = {"op": _known_op(op, f"op {shown(op)}"), "dtype": problem.M_dtype, **sizes}
        choices += [Choice(_numbers(config), config.name, stated) for config in solution.config[:1]]
    return choices


def _numbers(config: TritonGEMMConfig) -> dict[str, int]:
    return {name: getattr(config, name) for name in INT_COLUMNS}


def _of_problem(entry: object, number: int) -> Choice:
    where = f"config {number}"
    if not isinstance(entry, dict):
        raise RecordError(f"{where}: expected an object, not {shown(entry)}; correct or remove it")
    missing = [name for name in _NEEDED if name not in entry]
    if missing:
        raise RecordError(f"{where}: no {', '.join(missing)}; add what is missing or remove it")
    for names, kind, what in _KINDS:
        for name in names:
            value = entry.get(name, kind(1))
            if type(value) is not kind or (kind is int and value < 1):
                raise RecordError(f"{where}: {name} must be {what}, not {shown(value)}; correct it")
    stated = {own: entry[name] for name, own in _STATED.items() if name in entry}
    if "op" in stated:
        _known_op(stated["op"], where)
    if "dtype" in stated:
        dtype = stated["dtype"].removeprefix("torch.")
        stated["dtype"] = DTYPES.get(dtype, dtype)
    numbers = {name: entry[name] for name in INT_COLUMNS if name in entry}
    return Choice(numbers, entry.get("name"), stated)


def _known_op(op: str, where: str) -> str:
    if op not in OPS:
        raise RecordError(f"{where}: unknown op {shown(op)}; known ops: {', '.join(sorted(OPS))}")
    return op


@dataclass
class SolutionBuilder:
    """Collects max-autotune's choices, one measurement at a time."""

    space: InductorSpace
    by_op: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Number of problems on which a config is the fastest, by op and by the config's JSON."""
    by_problem: dict[str, None] = field(default_factory=dict)
    """Distinct problems with their configs, as JSON."""
    problems: int = 0
    """Number of measurements with a choice."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of measurements without a choice, by reason."""
    vendor_was_faster: int = 0

    def add(self, measurement: Measurement) -> None:
        """Add the fastest timed Triton kernel of the search space."""
        if measurement.is_replay or measurement.flags or measurement.superseded_by is not None:
            self.left_out["replays, flagged and superseded measurements"] += 1
            return
        if why := why_not_held(measurement.problem):
            self.left_out[why] += 1
            return
        timings = plausible_timings(measurement)
        ran = [timing for timing in timings if timing.runtime_us is not None and not timing.is_estimate]
        among = [timing for timing in ran if self._is_in_space(timing, measurement.problem.shape)]
        if not among:
            self.left_out[f"no kernel of the search space {self.space} was timed"] += 1
            return
        best = min(among, key=_runtime)
        self.vendor_was_faster += any(t.config.is_vendor and _runtime(t) < _runtime(best) for t in ran)
        shape, config = measurement.problem.shape, config_of(best.config, measurement.problem)
        self.by_op[shape.op][json.dumps(asdict(config))] += 1
        problem = {name: getattr(shape, own) for name, own in _STATED.items()}
        self.by_problem[json.dumps({**problem, "name": config.name, **_numbers(config)})] = None
        self.problems += 1

    def _is_in_space(self, timing: Timing, shape: ProblemShape) -> bool:
        config = timing.config
        if not config.template.startswith("triton::") or any(getattr(config, name) is None for name in INT_COLUMNS):
            return False
        return self.space is InductorSpace.EXHAUSTIVE or (
            config.template in TEMPLATES and GemmConfig.of(config) in default_configs(shape)
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the solution as plain data: by problem, and by op with the most frequent winners first."""
        by_op = {
            op: {_ANY_LIST: [json.loads(text) for text in _most_often(chosen)], "version": 1}
            for op, chosen in sorted(self.by_op.items())
        }
        by_problem = [json.loads(text) for text in sorted(self.by_problem)]
        return {"name": f"max-autotune {self.space}", _PROBLEM_LIST: by_problem, **by_op}

    def notes(self) -> list[str]:
        """Return sentences about what the solution leaves out."""
        said = [f"{counted(count, 'measurement')} left out: {why}" for why, count in self.left_out.items()]
        if self.vendor_was_faster:
            where = counted(self.vendor_was_faster, "measurement")
            said.append(f"the vendor's kernel was faster in {where}; a solution is of Triton's alone")
        return said


def _runtime(timing: Timing) -> float:
    assert timing.runtime_us is not None  # noqa: S101 - for mypy; failures are taken out before
    return timing.runtime_us


def _most_often(chosen: Counter[str]) -> list[str]:
    return [text for text, _ in sorted(chosen.items(), key=lambda item: (-item[1], item[0]))]
