"""Upstream torch-diode's data-set types, with the fields of its files and without torch.

Read from upstream's revision 6656d0c. A dtype is its torch name: ``bfloat16``. Files come in two layouts: the one
that upstream's code writes, and an older one, of upstream's own example, with a ``name`` beside each ``solution``
and ``timed_configs`` and with configs as JSON text. Both are read, the first is written.

**The unit of ``time`` is the millisecond.** Upstream's documentation says seconds, but its collector stores what
Inductor's feedback saver gives, which is milliseconds, and its example has 0.026 for a 32 x 32 x 32 product on an
H100. A kernel that failed has ``inf``, as Inductor gives it. ``diode_store.exchange.torch_diode`` is where times
become microseconds and ``inf`` an outcome.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from diode_store.errors import RecordError
from diode_store.exchange.jsonl_checks import known_dtype
from diode_store.exchange.torch_diode_layout import Node

if TYPE_CHECKING:
    from diode_store.exchange.torch_diode_layout import OnBad

_DTYPE_FIELDS = ("M_dtype", "K_dtype", "out_dtype")
_DTYPE_MARK = "__torch_dtype__"
_OLDER_NAME = frozenset({"name"})


@dataclass(frozen=True, kw_only=True)
class TritonGEMMConfig(Node):
    """A Triton kernel's parameters."""

    name: str
    """``triton_mm`` and the like; upstream's collector writes the op's name and ``_config``."""
    grid: int
    """Always 1: it follows from the problem and the tile."""
    block_m: int
    block_n: int
    block_k: int
    group_m: int
    num_stages: int
    num_warps: int
    EVEN_K: bool = False
    ALLOW_TF32: bool = False
    USE_FAST_ACCUM: bool = False
    ACC_TYPE: str = "tl.float32"


@dataclass(frozen=True, kw_only=True)
class MMShape(Node):
    """A matrix product (B, M, K) x (B, K, N); the strides of its inputs are not known."""

    B: int
    M: int
    M_dtype: str
    """Of the first operand."""
    N: int
    K: int
    K_dtype: str
    """Of the second operand."""
    out_dtype: str
    out_size: tuple[int, int, int]
    out_stride: tuple[int, int, int]

    def __post_init__(self) -> None:
        """Reject what is not a matrix product.

        Raises:
            RecordError: a size that is not positive, or an unknown dtype.
        """
        for name in "BMNK":
            if getattr(self, name) < 1:
                raise RecordError(f"{name} must be positive, not {getattr(self, name)}; correct or remove it")
        for name in _DTYPE_FIELDS:
            known_dtype(name, getattr(self, name))

    @property
    def is_row_major(self) -> bool:
        """Whether the output is a row-major (B, M, N)."""
        sizes = (self.B, self.M, self.N)
        return (self.out_size, self.out_stride) == (sizes, (self.M * self.N, self.N, 1))


@dataclass(frozen=True, kw_only=True)
class TimedConfig(Node):
    """A config and how long it took."""

    config: TritonGEMMConfig
    time: float
    """In milliseconds; ``inf`` if it failed."""

    @property
    def is_timed(self) -> bool:
        """Whether it ran, and ``time`` is a time."""
        return 0 < self.time < math.inf


@dataclass(frozen=True, kw_only=True)
class DatasetSolution(Node):
    """What was timed for one problem, in the order it was."""

    OLDER_FIELDS: ClassVar[frozenset[str]] = _OLDER_NAME
    EACH: ClassVar[str] = "config"

    timed_configs: list[TimedConfig]

    def fastest_first(self) -> list[TritonGEMMConfig]:
        """Return the configs that ran, the fastest first; of equals the one timed first."""
        timed = (timed for timed in self.timed_configs if timed.is_timed)
        return [timed.config for timed in sorted(timed, key=lambda timed: timed.time)]


@dataclass(frozen=True, kw_only=True)
class DatasetOperation(Node):
    """One op's problems."""

    OLDER_FIELDS: ClassVar[frozenset[str]] = _OLDER_NAME
    EACH: ClassVar[str] = "problem"

    solution: dict[MMShape, DatasetSolution]


@dataclass(frozen=True, kw_only=True)
class DatasetHardware(Node):
    """One device's ops."""

    EACH: ClassVar[str] = "op"

    operation: dict[str, DatasetOperation]


@dataclass(frozen=True, kw_only=True)
class Solution(Node):
    """Configs for one problem, the best first."""

    EACH: ClassVar[str] = "config"

    config: list[TritonGEMMConfig]


@dataclass(frozen=True, kw_only=True)
class Operation(Node):
    """One op's problems."""

    EACH: ClassVar[str] = "problem"

    solution: dict[MMShape, Solution]


@dataclass(frozen=True, kw_only=True)
class Hardware(Node):
    """One device's ops."""

    EACH: ClassVar[str] = "op"

    operation: dict[str, Operation]


@dataclass(frozen=True, kw_only=True)
class Table(Node):
    """For each device, op and problem, the configs to try, the best first."""

    EACH: ClassVar[str] = "hardware"

    hardware: dict[str, Hardware] = field(default_factory=dict)

    def lookup(self, hardware: str, op_name: str, problem: MMShape) -> list[TritonGEMMConfig] | None:
        """Return the configs of a problem, the best first, or None where the table has none."""
        ops = self.hardware.get(hardware)
        solutions = ops.operation.get(op_name) if ops else None
        found = solutions.solution.get(problem) if solutions else None
        return found.config if found else None


@dataclass(frozen=True, kw_only=True)
class Dataset(Node):
    """For each device, op and problem, what was timed."""

    EACH: ClassVar[str] = "hardware"

    hardware: dict[str, DatasetHardware] = field(default_factory=dict)

    def add_timing(
        self, hardware_name: str, op_name: str, problem: MMShape, config: TritonGEMMConfig, time: float
    ) -> None:
        """Add how many milliseconds a config took; ``inf`` if it failed."""
        ops = self.hardware.setdefault(hardware_name, DatasetHardware(operation={})).operation
        solutions = ops.setdefault(op_name, DatasetOperation(solution={})).solution
        solution = solutions.setdefault(problem, DatasetSolution(timed_configs=[]))
        solution.timed_configs.append(TimedConfig(config=config, time=time))

    def copy(self) -> Dataset:
        """Return an independent copy of the same timings."""
        return Dataset(
            version=self.version,
            hardware={
                device: replace(ops, operation={op: _copied(problems) for op, problems in ops.operation.items()})
                for device, ops in self.hardware.items()
            },
        )

    def to_table(self) -> Table:
        """Return each problem's configs, the fastest first; without those that failed."""
        return Table(
            hardware={
                device: Hardware(operation={op: _ranked(problems) for op, problems in ops.operation.items()})
                for device, ops in self.hardware.items()
            }
        )

    def get_fastest_configs(self) -> dict[tuple[str, str, MMShape], TritonGEMMConfig]:
        """Return the fastest config of each device, op and problem."""
        return {
            (device, op, problem): solution.config[0]
            for device, ops in self.to_table().hardware.items()
            for op, problems in ops.operation.items()
            for problem, solution in problems.solution.items()
        }


def _copied(problems: DatasetOperation) -> DatasetOperation:
    copied = {p: replace(found, timed_configs=[*found.timed_configs]) for p, found in problems.solution.items()}
    return replace(problems, solution=copied)


def _ranked(problems: DatasetOperation) -> Operation:
    ranked = {problem: solution.fastest_first() for problem, solution in problems.solution.items()}
    return Operation(solution={problem: Solution(config=configs) for problem, configs in ranked.items() if configs})


@dataclass(frozen=True, kw_only=True)
class ShapeSet(Node):
    """Problems to time."""

    EACH: ClassVar[str] = "shape"

    shapes: list[MMShape] = field(default_factory=list)

    def add_shape(self, shape: MMShape) -> None:
        """Add a problem."""
        self.shapes.append(shape)

    def serialize(self) -> str:
        """Return it as the JSON text of a file."""
        return json.dumps(_shapes_as_text(self), indent=2)

    def _for_msgpack(self) -> dict[str, Any]:
        return dict(_marked(self.to_dict()))

    @classmethod
    def read(cls, data: object, where: str, on_bad: OnBad | None) -> Self:
        """Read it inside a file, with dtypes marked or plain."""
        return super().read(_unmarked(data), where, on_bad)


@dataclass(frozen=True, kw_only=True)
class OperationShapeSet(Node):
    """Problems to time, by op."""

    EACH: ClassVar[str] = "op"

    operations: dict[str, ShapeSet] = field(default_factory=dict)

    def add_shape(self, op_name: str, shape: MMShape) -> None:
        """Add a problem to an op's."""
        self.operations.setdefault(op_name, ShapeSet()).add_shape(shape)

    def serialize(self) -> str:
        """Return it as the JSON text of a file."""
        return json.dumps({"operations": {op: _shapes_as_text(s) for op, s in self.operations.items()}}, indent=2)

    def _for_msgpack(self) -> dict[str, Any]:
        return dict(_marked(self.to_dict()))


def _shapes_as_text(shapes: ShapeSet) -> dict[str, Any]:
    """Return a shape set as its JSON files have it: without a version of its own."""
    return {"shapes": [json.loads(shape.as_key()) for shape in shapes.shapes]}


def _marked(data: Any) -> Any:
    """Return plain data with its dtypes marked, as upstream's msgpack has them where a shape is no key."""
    if isinstance(data, list):
        return [_marked(item) for item in data]
    if not isinstance(data, dict):
        return data
    return {k: {_DTYPE_MARK: item} if k in _DTYPE_FIELDS else _marked(item) for k, item in data.items()}


def _unmarked(data: Any) -> Any:
    """Return a shape set with its dtypes as plain text, whichever file it is from."""
    if isinstance(data, dict):
        if data.keys() == {_DTYPE_MARK}:
            return data[_DTYPE_MARK]
        return {key: _unmarked(item) for key, item in data.items()}
    return [_unmarked(item) for item in data] if isinstance(data, list) else data
