"""Domain of an op whose problems are told apart by more than their sizes, such as scaled products or attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.ops import OPS
from diode_store.ops.attending import FORWARD
from diode_store.ops.convolving import DILATION, numbers_of
from diode_store.ops.grouping import BATCH, COLUMNS, DEPTH, ROWS
from diode_store.records import ProblemShape
from diode_trainer.covered import CoveredHardware, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from diode_store.kernels import Scalar

_LEFT_OUT = {"fast_accum": False, "bias": False, "b_dtype": "that of A"}
"""Values of dimensions that a problem leaves out."""
_HEAD_SIZE, _VALUE_SIZE = "head_size", "value_size"
_SPATIAL, _DILATED = "spatial_sizes", "dilated"
_TOLD_AS = {
    "fast_accum": "fast accumulation",
    "out_dtype": "output dtype",
    "b_dtype": "dtype of B",
    _HEAD_SIZE: "head size",
    _VALUE_SIZE: "head size of values",
    _SPATIAL: "number of spatial sizes",
    _DILATED: "dilation",
}
_HALVES = ("bfloat16", "float16")
"""Dtypes whose kernels of attention and convolutions do the same work at the same speed."""
_SIZES = ("b", "m", "n", "k")
_DIVIDED = {ROWS: "m", COLUMNS: "n", DEPTH: "k"}


class Miss(NamedTuple):
    """One way in which a problem or its device is outside a domain."""

    reason: str
    """One word: hardware, op, dtype, layout, dimension or shape."""
    summary: str
    """Short description, equal for similar problems."""
    detail: str
    """One line for a person about this problem."""


def has_own_domain(op: str) -> bool:
    """Return whether an op needs a domain of its own: it is no plain product, or has an output of its own."""
    entry = OPS.get(op)
    if entry is None:
        return False
    return bool(entry.is_convolution or entry.is_scaled or entry.is_grouped or entry.out_dtype or entry.products > 1)


@dataclass(frozen=True)
class OpDomain:
    """Problems of one op that a model can be trusted on."""

    hardware: tuple[CoveredHardware, ...] = ()
    """Devices on which the op was measured."""
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    """Empty for attention, whose kernels hardly depend on it."""
    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    """Known values of each dimension: scaling, fast_accum, out_dtype, b_dtype, bias, form and the head
    sizes. A compiler
    does not know the skew, so it is not among them.
    """
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest b, m, n and k; of a grouped product b is the number of groups, and the divided size is the
    mean of the groups.
    """

    @classmethod
    def of(
        cls,
        shapes: Sequence[ProblemShape],
        hardware: Sequence[CoveredHardware],
        covered: Callable[[Iterable[Any]], tuple[Any, ...]],
    ) -> OpDomain:
        """Return the domain of problems of one op, or of plain ones; without problems it is empty.

        Args:
            shapes: problems in the training data.
            hardware: devices on which they were measured.
            covered: returns the values that enough of the problems have.
        """
        dtypes, layouts = covered(shape.arithmetic for shape in shapes), covered(shape.layout for shape in shapes)
        if shapes and not OPS[shapes[0].op].has_matrices:
            dtypes = tuple(sorted({*dtypes, *(_HALVES if set(_HALVES) & set(dtypes) else ())}))
            layouts = () if OPS[shapes[0].op].is_attention else layouts
        return cls(
            hardware=tuple(hardware),
            dtypes=dtypes,
            layouts=layouts,
            values={name: covered(_value(shape, name) for shape in shapes) for name in _names(shapes)},
            shapes={name: _range(getattr(shape, name) for shape in shapes) for name in _SIZES if shapes},
        )

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> OpDomain:
        """Rebuild a domain from the result of ``asdict``.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not such a result.
        """
        return cls(
            hardware=tuple(CoveredHardware.from_plain(device) for device in content["hardware"]),
            dtypes=tuple(content["dtypes"]),
            layouts=tuple(content["layouts"]),
            values={name: tuple(values) for name, values in content["values"].items()},
            shapes={name: (int(low), int(high)) for name, (low, high) in content["shapes"].items()},
        )

    def misses(self, shape: ProblemShape) -> Iterator[Miss]:
        """Yield every way in which a problem of this op is outside."""
        op = shape.op
        for name, value, known in (
            ("dtype", shape.arithmetic, self.dtypes),
            ("layout", shape.layout, self.layouts),
        ):
            if known and value not in known:
                yield Miss(name, f"{name} {value} of {op}", f"of {op} the model knows {', '.join(known)}, not {value}")
        for name, values in self.values.items():
            given, told = _value(shape, name), _TOLD_AS.get(name, name)
            if given not in values:
                detail = f"of {op} the model knows the {told} {', '.join(map(_shown, values))}, not {_shown(given)}"
                if name == _DILATED:
                    detail = f"of {op} the model knows {'only ones' if given is False else 'none'} with a dilation"
                yield Miss("dimension", f"{told} {_shown(given)} of {op}", detail)
        yield from out_of_range(shape, self.shapes, of=f" of {op}")

    def describe(self) -> str:
        """Return the domain in one line for a person."""
        parts = [", ".join(labels(self.hardware)), ", ".join(self.dtypes)]
        parts += [", ".join(self.layouts)] if self.layouts else []
        parts += [f"{_TOLD_AS.get(name, name)} {', '.join(map(_shown, found))}" for name, found in self.values.items()]
        parts += [f"{name} {low} to {high}" for name, (low, high) in self.shapes.items()]
        return "; ".join(parts)

    def example(self, op: str) -> ProblemShape:
        """Return a problem in the middle of the domain."""
        sizes = {name: round((low * high) ** 0.5) for name, (low, high) in self.shapes.items()}
        found: dict[str, Scalar] = {name: values[0] for name, values in self.values.items() if values}
        sizes["k"] = int(found.pop(_HEAD_SIZE, sizes["k"]))
        form = found.get("form")
        if isinstance(form, str) and form != BATCH:
            found["total"] = sizes["b"] * sizes[_DIVIDED[form]]
        kept = tuple(sorted((name, value) for name, value in found.items() if value))
        dtype = self.dtypes[0]
        b, m, n, k = (sizes[name] for name in _SIZES)
        is_tf32 = dtype == "tf32"
        return ProblemShape(
            op, "float32" if is_tf32 else dtype, b, m, n, k, (self.layouts or ("nn",))[0], is_tf32, kept
        )


def out_of_range(shape: ProblemShape, ranges: Mapping[str, tuple[int, int]], of: str = "") -> Iterator[Miss]:
    """Yield the sizes of a problem that are outside their range.

    Args:
        shape: problem.
        ranges: smallest and largest value of each size.
        of: words after the name of a size.
    """
    for name, (low, high) in ranges.items():
        value = getattr(shape, name)
        size = "groups" if name == "b" and shape.dimension("total") else name.upper()
        if not low <= value <= high:
            detail = f"{size}={value} is outside {low} to {high}, which the model knows{of}"
            yield Miss("shape", f"{size}{of} outside {low} to {high}", detail)


def _range(sizes: Iterable[int]) -> tuple[int, int]:
    found = sorted(sizes)
    return found[0], found[-1]


def _names(shapes: Sequence[ProblemShape]) -> tuple[str, ...]:
    """Return the names of the dimensions that the domain of an op covers."""
    if not shapes or not has_own_domain(shapes[0].op):
        return ()
    entry = OPS[shapes[0].op]
    if entry.is_convolution:
        return (_SPATIAL, _DILATED)
    if entry.is_attention:
        # Of families with another head size, forward models chose kernels that spill; the other models did not.
        return (_HEAD_SIZE, _VALUE_SIZE) if shapes[0].op == FORWARD else ()
    scaled = ("scaling", "fast_accum", "bias", "b_dtype") if entry.is_scaled else ()
    grouped = ("form",) if entry.is_grouped else ()
    return (*scaled, *grouped, *(("out_dtype",) if scaled or grouped else ()))


def _value(shape: ProblemShape, name: str) -> Scalar:
    if name == "out_dtype":
        return shape.out_dtype
    if name == _SPATIAL:
        return len(numbers_of(shape.dimension("kernel", "1")))
    if name == _DILATED:
        return shape.dimension(DILATION) is not None
    if name == _HEAD_SIZE:
        return shape.k
    if name == _VALUE_SIZE:
        found: Scalar = shape.dimension(_VALUE_SIZE, shape.k)
        return found
    value: Scalar = shape.dimension(name, _LEFT_OUT.get(name, "none"))
    return value


def _shown(value: Scalar) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
