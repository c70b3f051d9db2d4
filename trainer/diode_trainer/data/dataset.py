"""Examples to learn from and to judge by: the warehouse's ``training_examples``, problem by problem."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.columns import INT_COLUMNS, ConfigColumns
from diode_store.noise import OTHER_SIGMAS
from diode_store.settings import database_option
from diode_store.urls import redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.card import Domain

_INGEST = "ingest measurements first, such as the bundled ones: `diode-ingest --once --bundled{}`"
FEW = f"drop --op or --dtype if they leave too much out, or {_INGEST.format('')}"
"""The remedy for too few problems."""

_ENOUGH_PROBLEMS = 40
_ENOUGH_SHARE = 0.04
"""How many problems, or in a small data set which share of them, an op, dtype or layout needs to count as covered. From
14 float32 or 25 baddbmm problems among a thousand a model learned nothing reliable; with 58 and 156 of them its first
pick was 8% and 6% off where it had seen no problem of the family (docs/models.md)."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Every config tried on one problem, on one hardware, in one environment and regime; arrays have shape (n,)."""

    hardware: Hardware
    environment: str
    """What tells its timings from those of other environments."""
    shape: ProblemShape
    columns: ConfigColumns
    runtime_us: NDArray[np.float64]
    """inf where the config failed, so that it never is a fastest one."""
    is_vendor: NDArray[np.bool_]
    is_estimate: NDArray[np.bool_]
    family: str | None = None
    """The family of problems it was swept for, the first by name of several; None if none is known."""
    regime: str | None = None
    """What surrounded the timed launches (``TimingMethod.regime``); None if it is not known."""
    usual_sigmas: tuple[float, ...] = OTHER_SIGMAS
    """Relative scatter of its times in each band of ``diode_store.noise.BANDS_US``, by how they were taken."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.runtime_us)

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Which configs did not fail."""
        return np.isfinite(self.runtime_us)

    def templates_that_ran(self) -> set[str]:
        """Return the templates of the configs that did not fail."""
        return {self.columns.templates[i] for i in np.unique(self.columns.template_index[self.ran])}


@dataclass(frozen=True)
class ExampleSet:
    """Examples of many problems and where they come from."""

    examples: tuple[Examples, ...]
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return how many problems there are; one counts again in each environment and regime."""
        return len(self.examples)

    def __iter__(self) -> Iterator[Examples]:
        """Iterate over the problems."""
        return iter(self.examples)

    @property
    def timings(self) -> int:
        """How many (problem, config) pairs there are, failures included."""
        return sum(len(example) for example in self.examples)

    @property
    def failures(self) -> int:
        """How many of them never ran."""
        return sum(int((~example.ran).sum()) for example in self.examples)

    @property
    def triton_configs(self) -> int:
        """How many different Triton configs there are; the sizes of a problem do not count."""
        columns = ConfigColumns.joined([example.columns for example in self])
        of_triton = columns.take(columns.template_mask(lambda name: name.startswith("triton::")))
        rows = [of_triton.template_index, *(getattr(of_triton, name) for name in INT_COLUMNS)]
        return len(np.unique(np.stack(rows), axis=1).T)

    def subset(self, indices: Sequence[int] | NDArray[np.intp]) -> ExampleSet:
        """Return the problems at ``indices``."""
        return ExampleSet(tuple(self.examples[i] for i in indices), self.lineage)

    def domain(self) -> Domain:
        """Return what the problems cover: where a model trained on them can be trusted.

        A problem of which only the vendor's kernels were tried says nothing about where templates can be ranked.
        """
        from diode_trainer.card import CoveredHardware, Domain

        shapes = [example.shape for example in self.examples if not example.is_vendor.all()]
        shapes = shapes or [example.shape for example in self.examples]
        devices = {(e.hardware.name, e.hardware.arch, e.hardware.multiprocessors, e.hardware.vendor) for e in self}
        return Domain(
            hardware=tuple(CoveredHardware(*device) for device in sorted(devices)),
            ops=_covered(shape.op for shape in shapes),
            dtypes=_covered(shape.arithmetic for shape in shapes),
            layouts=_covered(shape.layout for shape in shapes),
            templates=tuple(sorted(set().union(*(example.templates_that_ran() for example in self)))),
            shapes={
                name: (min(getattr(s, name) for s in shapes), max(getattr(s, name) for s in shapes)) for name in "bmnk"
            },
        )


def _covered(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values that enough problems have."""
    counts = Counter(values)
    enough = min(_ENOUGH_PROBLEMS, _ENOUGH_SHARE * counts.total())
    return tuple(sorted(value for value, count in counts.items() if count >= enough))


def ingest_first(database: str) -> str:
    """Return the remedy for a warehouse without measurements.

    The command names the warehouse, as a settings file may lead diode-ingest to another one.
    """
    return _INGEST.format(database_option(redact(str(sqlite_path(database) or database))))


def what_there_is(ops_and_dtypes: Iterable[tuple[str, str]]) -> str:
    """Return the distinct ops and dtypes in words."""
    ops, dtypes = (sorted(set(values)) for values in zip(*ops_and_dtypes, strict=True))
    return f"op {', '.join(ops)}; dtype {', '.join(dtypes)}"


def canonical(examples: Iterable[Examples]) -> tuple[Examples, ...]:
    """Return problems and their configs in an order that follows from their content.

    So that equal measurements give equal models, whatever order they were ingested or written in.
    """
    ordered = sorted(examples, key=lambda e: (sort_key(e.shape), e.hardware.name, e.environment, e.regime or ""))
    return tuple(_sorted_configs(example) for example in ordered)


def _sorted_configs(example: Examples) -> Examples:
    columns = example.columns
    names = sorted(columns.templates)
    template = np.array([names.index(name) for name in columns.templates])[columns.template_index]
    numbers = [getattr(columns, name) for name in INT_COLUMNS]
    order = np.lexsort((example.runtime_us, columns.allow_tf32, *reversed(numbers), template))
    arrays = {name: getattr(example, name)[order] for name in ("runtime_us", "is_vendor", "is_estimate")}
    return replace(example, columns=columns.take(order), **arrays)


def sort_key(shape: ProblemShape) -> tuple[Any, ...]:
    """Return what puts problems in an order that follows from their content."""
    return shape.op, shape.arithmetic, shape.b, shape.m, shape.n, shape.k, shape.layout
