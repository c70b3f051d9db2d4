"""Upstream torch-diode's data sets and tables, with the fields of its files and without torch.

The fields are those of upstream's revision 6656d0c. A dtype is its torch name: ``bfloat16``. Files come in two
layouts: the one that upstream's code writes, and the older one of upstream's example. The older layout has a ``name``
beside each ``solution`` and ``timed_configs``, and configs as JSON text. Both are read; the first is written.

**The unit of ``time`` is the millisecond.** Upstream's documentation says seconds, but its collector stores the
milliseconds of Inductor's feedback saver. A failed kernel has ``inf``. The module ``torch_diode`` turns times into
microseconds and ``inf`` into an outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

from diode_store.errors import RecordError
from diode_store.exchange.bounds import json_of
from diode_store.exchange.context import BadProblem
from diode_store.exchange.foreign.torch_diode_layout import VERSION, checked, inside
from diode_store.exchange.jsonl_checks import known_dtype
from diode_store.values import checks

OnBad = Callable[[BadProblem], None]
"""Called with each problem that cannot be read; the others are read."""


@dataclass(frozen=True, kw_only=True)
class TritonGEMMConfig:
    """Parameters of a Triton kernel."""

    ACC_TYPE: str = "tl.float32"
    ALLOW_TF32: bool = False
    EVEN_K: bool = False
    USE_FAST_ACCUM: bool = False
    block_k: int
    block_m: int
    block_n: int
    grid: int
    """Always 1: the problem and the tile determine the grid."""
    group_m: int
    name: str
    """Template, such as ``triton_mm``; upstream's collector writes the op's name and ``_config``."""
    num_stages: int
    num_warps: int
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class MMShape:
    """A matrix product (B, M, K) x (B, K, N); the strides of its inputs are unknown."""

    version: int = VERSION
    B: int
    M: int
    M_dtype: str
    """Dtype of the first operand."""
    N: int
    K: int
    K_dtype: str
    """Dtype of the second operand."""
    out_dtype: str
    out_size: tuple[int, int, int]
    out_stride: tuple[int, int, int]

    def __post_init__(self) -> None:
        """Reject sizes and dtypes that no matrix product has.

        Raises:
            RecordError: a size is not positive, or a dtype is unknown.
        """
        for name in "BMNK":
            if getattr(self, name) < 1:
                raise RecordError(f"{name} must be positive, not {getattr(self, name)}; correct or remove it")
        for name in ("M_dtype", "K_dtype", "out_dtype"):
            known_dtype(name, getattr(self, name))

    @property
    def is_row_major(self) -> bool:
        """True if the output is a row-major (B, M, N)."""
        sizes = (self.B, self.M, self.N)
        return (self.out_size, self.out_stride) == (sizes, (self.M * self.N, self.N, 1))

    def as_key(self) -> str:
        """Return the shape as the key of a map: JSON text."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, kw_only=True)
class TimedConfig:
    """A config and its time."""

    config: TritonGEMMConfig
    time: float
    """Milliseconds; ``inf`` for a failure."""
    version: int = VERSION

    @property
    def is_timed(self) -> bool:
        """True if the kernel ran and has a time."""
        return 0 < self.time < math.inf


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Configs for one problem, the best first."""

    config: list[TritonGEMMConfig]
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class DatasetSolution:
    """Timed configs of one problem, in the order of their timing."""

    timed_configs: list[TimedConfig]
    version: int = VERSION


Place = tuple[str, str, MMShape]
"""Device, op and problem."""
_Solution = TypeVar("_Solution", Solution, DatasetSolution)


@dataclass(frozen=True, kw_only=True)
class _File:
    hardware: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class _Hardware:
    operation: dict[str, Any]
    version: int = VERSION


@dataclass(frozen=True, kw_only=True)
class _Operation:
    solution: dict[str, Any]
    name: str = ""
    version: int = VERSION


@dataclass
class ByProblem(Generic[_Solution]):
    """A file's content: a solution for each device, op and problem."""

    SOLUTION: ClassVar[type[Any]]

    problems: dict[Place, _Solution] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, content: object, *, on_bad: OnBad | None = None) -> Self:
        """Read plain maps and lists.

        Args:
            content: the result of ``to_dict``, or of reading one of upstream's files.
            on_bad: called with each bad problem. Without it, the first bad problem raises.

        Raises:
            RecordError: a value is missing, unknown or has the wrong type; the message names the place.
        """
        found = cls()
        for device, op, number, entry in _entries(content):
            where = f"hardware {checks.shown(device)}, op {checks.shown(op)}, problem {number}"
            try:
                found._add((device, op), entry, where)
            except RecordError as error:
                if on_bad is None:
                    raise
                on_bad(BadProblem(number, str(error)))
        return found

    def _add(self, named: tuple[str, str], entry: tuple[str, object], where: str) -> None:
        place = (*named, checked(json_of(entry[0], where), MMShape, where))
        if place in self.problems:
            raise RecordError(f"{where}: occurs twice; merge the two")
        self.problems[place] = solution_of(entry[1], self.SOLUTION, where)

    def to_dict(self) -> dict[str, Any]:
        """Return the content in upstream's layout."""
        hardware: dict[str, Any] = {}
        for (device, op, shape), solution in self.problems.items():
            ops = hardware.setdefault(device, {"operation": {}, "version": 1})["operation"]
            solutions = ops.setdefault(op, {"solution": {}, "version": 1})["solution"]
            solutions[shape.as_key()] = asdict(solution)
        return {"hardware": hardware, "version": 1}


def _entries(content: object) -> Iterator[tuple[str, str, int, tuple[str, object]]]:
    """Yield device, op, number of the problem, and the problem's text with its solution."""
    for device, ops in checked(content, _File).hardware.items():
        where = f"hardware {checks.shown(device)}"
        for op, problems in checked(ops, _Hardware, where).operation.items():
            solutions = checked(problems, _Operation, inside(where, f"op {checks.shown(op)}")).solution
            yield from ((device, op, number, entry) for number, entry in enumerate(solutions.items(), 1))


class Table(ByProblem[Solution]):
    """Configs to try for each device, op and problem."""

    SOLUTION = Solution


class Dataset(ByProblem[DatasetSolution]):
    """Timings of each device, op and problem."""

    SOLUTION = DatasetSolution

    def add_timing(self, hardware: str, op: str, problem: MMShape, config: TritonGEMMConfig, time: float) -> None:
        """Add the time of a config in milliseconds; ``inf`` for a failure."""
        solution = self.problems.setdefault((hardware, op, problem), DatasetSolution(timed_configs=[]))
        solution.timed_configs.append(TimedConfig(config=config, time=time))

    def copy(self) -> Dataset:
        """Return an independent copy of the same timings."""
        return Dataset({p: DatasetSolution(timed_configs=[*s.timed_configs]) for p, s in self.problems.items()})

    def to_table(self) -> Table:
        """Return each problem's configs without the failed ones, the fastest first; of equals the one timed first."""
        ran = {p: [timed for timed in s.timed_configs if timed.is_timed] for p, s in self.problems.items()}
        ranked = {p: sorted(timed, key=lambda one: one.time) for p, timed in ran.items() if timed}
        return Table({p: Solution(config=[one.config for one in timed]) for p, timed in ranked.items()})

    def get_fastest_configs(self) -> dict[Place, TritonGEMMConfig]:
        """Return the fastest config of each device, op and problem."""
        return {place: solution.config[0] for place, solution in self.to_table().problems.items()}


def solution_of(plain: Any, kind: type[_Solution], where: str = "") -> _Solution:
    """Return a plain solution as an object; older files give it a name, and hold its configs as JSON text.

    Raises:
        RecordError: ``plain`` is not a solution of this kind; the message begins with ``where``.
    """
    if isinstance(plain, dict):
        plain = {name: _without_texts(value, where) for name, value in plain.items() if name != "name"}
    return checked(plain, kind, where)


def _without_texts(entries: Any, where: str) -> Any:
    if not isinstance(entries, list):
        return entries
    return [_without_text(entry, inside(where, f"config {number}")) for number, entry in enumerate(entries, 1)]


def _without_text(entry: Any, where: str) -> Any:
    if isinstance(entry, dict) and "config" in entry:
        return {**entry, "config": _without_text(entry["config"], where)}
    return json_of(entry, where) if isinstance(entry, str) else entry
