"""Examples for training and evaluation: the warehouse's ``training_examples``, problem by problem."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns
from diode_store.ops import FUSED_OPS, OPS
from diode_store.system.settings import database_option
from diode_store.system.urls import redact, sqlite_path
from diode_store.timing.noise import OTHER_SIGMAS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.card import Domain
    from diode_trainer.covered import CoveredHardware
    from diode_trainer.op_domain import OpDomain

_INGEST = "ingest measurements first, such as the bundled ones: `diode-ingest --once --bundled{}`"
FEW = f"drop --op or --dtype if they leave too much out, or {_INGEST.format('')}"
"""Remedy for too few problems."""

LEARNED_ALONE = tuple(name for name, op in OPS.items() if not op.has_matrices)
"""Ops that each have models of their own: attention and convolutions."""
NOT_LEARNED = (*FUSED_OPS, *LEARNED_ALONE)
"""Ops whose timings are kept and that no model of matrix products learns from."""
UNKNOWN_OPS = "unknown_ops"
"""Entry of a lineage: problems left out because the table of ops does not know their op, by op."""
_ENOUGH_PROBLEMS = 40
_ENOUGH_SHARE = 0.04
"""Problems, or share of the problems of a small data set, that an op, dtype or layout needs to count as covered. A
model learns nothing reliable from fewer (docs/results/what-helps-a-model.md).
"""


@dataclass(frozen=True, eq=False)
class Examples:
    """All configs tried on one problem, on one device, in one environment and regime; arrays have shape (n,)."""

    hardware: Hardware
    environment: str
    """Key of the environment of the timings."""
    shape: ProblemShape
    columns: ConfigColumns
    runtime_us: NDArray[np.float64]
    """Runtimes; inf if the config failed, so that it never is the fastest."""
    is_vendor: NDArray[np.bool_]
    is_estimate: NDArray[np.bool_]
    family: str | None = None
    """Family of the problem, the first by name if there are several; None if unknown."""
    regime: str | None = None
    """Regime of the timings (``TimingMethod.regime``); None if unknown."""
    usual_sigmas: tuple[float, ...] = OTHER_SIGMAS
    """Relative scatter of the times in each band of ``diode_store.timing.noise.BANDS_US``, for their timing method."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.runtime_us)

    @property
    def ran(self) -> NDArray[np.bool_]:
        """Mask of the configs that did not fail."""
        return np.isfinite(self.runtime_us)

    def templates_that_ran(self) -> set[str]:
        """Return the templates of the configs that did not fail."""
        return {self.columns.templates[i] for i in np.unique(self.columns.template_index[self.ran])}


@dataclass(frozen=True)
class ExampleSet:
    """Examples of many problems, with their origin."""

    examples: tuple[Examples, ...]
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of problems; a problem counts again in each environment and regime."""
        return len(self.examples)

    def __iter__(self) -> Iterator[Examples]:
        """Iterate over the problems."""
        return iter(self.examples)

    @property
    def timings(self) -> int:
        """Number of (problem, config) pairs, failures included."""
        return sum(len(example) for example in self.examples)

    @property
    def failures(self) -> int:
        """Number of those pairs that failed."""
        return sum(int((~example.ran).sum()) for example in self.examples)

    @property
    def triton_configs(self) -> int:
        """Number of distinct Triton configs, whatever the problem."""
        columns = ConfigColumns.joined([example.columns for example in self])
        of_triton = columns.take(columns.template_mask(lambda name: name.startswith("triton::")))
        rows = [of_triton.template_index, *(getattr(of_triton, name) for name in INT_COLUMNS)]
        rows += [] if of_triton.gradient_blocks is None else [*of_triton.gradient_blocks.T]
        return len(np.unique(np.stack(rows), axis=1).T)

    def subset(self, indices: Sequence[int] | NDArray[np.intp]) -> ExampleSet:
        """Return the problems at ``indices``."""
        return ExampleSet(tuple(self.examples[i] for i in indices), self.lineage)

    def devices(self) -> list[CoveredHardware]:
        """Return the device models on which templates ran, by name; if none did, all device models."""
        from diode_trainer.covered import CoveredHardware

        ranked = {example.hardware for example in self if (example.ran & ~example.is_vendor).any()}
        return _described_best(CoveredHardware.of(each) for each in ranked or {e.hardware for e in self})

    def _domain_of(self, ops: Collection[str], shapes: Iterable[ProblemShape]) -> OpDomain:
        """Return the domain of some ops: what ``shapes`` of them cover, and the devices with enough problems."""
        from diode_trainer.covered import CoveredHardware
        from diode_trainer.op_domain import OpDomain

        some = ExampleSet(tuple(example for example in self.examples if example.shape.op in ops))
        enough = _covered(CoveredHardware.of(example.hardware).identity for example in some)
        devices = [device for device in some.devices() if device.identity in enough]
        return OpDomain.of([shape for shape in shapes if shape.op in ops], devices, _covered)

    def domain(self) -> Domain:
        """Return the domain of a model trained on these problems.

        Problems with vendor kernels only do not count, as they do not show how templates rank.
        """
        from diode_trainer.card import Domain
        from diode_trainer.op_domain import has_own_domain

        shapes = [example.shape for example in self.examples if not example.is_vendor.all()]
        shapes = shapes or [example.shape for example in self.examples]
        ops = _covered(shape.op for shape in shapes)
        devices = tuple(self.devices())
        plain = self._domain_of({e.shape.op for e in self if not has_own_domain(e.shape.op)}, shapes)
        return Domain(
            hardware=devices,
            ops=ops,
            dtypes=plain.dtypes,
            layouts=plain.layouts,
            templates=tuple(sorted(set().union(*(example.templates_that_ran() for example in self)))),
            shapes=plain.shapes,
            plain_hardware=() if plain.hardware == devices else plain.hardware,
            of_ops={op: self._domain_of({op}, shapes) for op in ops if has_own_domain(op)},
        )


def _described_best(devices: Iterable[CoveredHardware]) -> list[CoveredHardware]:
    """Return the device models by name, each from its most complete record."""
    best: dict[tuple[str, str, int], CoveredHardware] = {}
    for device in sorted(set(devices), key=lambda each: [str(value) for value in astuple(each)]):
        kept = best.setdefault(device.identity, device)
        if astuple(device).count(None) < astuple(kept).count(None):
            best[device.identity] = device
    return [best[identity] for identity in sorted(best)]


def _covered(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values that enough problems have."""
    counts = Counter(values)
    enough = min(_ENOUGH_PROBLEMS, _ENOUGH_SHARE * counts.total())
    return tuple(sorted(value for value, count in counts.items() if count >= enough))


def with_unknown(ops: Mapping[str, int]) -> dict[str, Any]:
    """Return the part of a lineage that counts problems left out for their unknown op, by op; empty without any."""
    return {UNKNOWN_OPS: dict(sorted(ops.items()))} if ops else {}


def ingest_first(database: str) -> str:
    """Return the remedy for a warehouse without measurements."""
    return _INGEST.format(_option_of(database))


def ingest_bundled(database: str) -> str:
    """Return the command that imports the bundled measurements into a warehouse."""
    return f"`diode-ingest --once --bundled{_option_of(database)}`"


def _option_of(database: str) -> str:
    """Return the option that names a warehouse, since a settings file may point diode-ingest to another one."""
    return database_option(redact(str(sqlite_path(database) or database)))


def what_there_is(ops_and_dtypes: Iterable[tuple[str, str]]) -> str:
    """Describe the distinct ops and dtypes."""
    ops, dtypes = (sorted(set(values)) for values in zip(*ops_and_dtypes, strict=True))
    return f"op {', '.join(ops)}; dtype {', '.join(dtypes)}"


def canonical(examples: Iterable[Examples]) -> tuple[Examples, ...]:
    """Order problems and their configs by content.

    So equal measurements give equal models, in whatever order they were ingested or written.
    """
    ordered = sorted(examples, key=lambda e: (sort_key(e.shape), e.hardware.name, e.environment, e.regime or ""))
    return tuple(_sorted_configs(example) for example in ordered)


def _sorted_configs(example: Examples) -> Examples:
    columns = example.columns
    names = sorted(columns.templates)
    template = np.array([names.index(name) for name in columns.templates])[columns.template_index]
    numbers = [getattr(columns, name) for name in INT_COLUMNS]
    numbers += [] if columns.gradient_blocks is None else [*columns.gradient_blocks.T]
    order = np.lexsort((example.runtime_us, columns.allow_tf32, *reversed(numbers), template))
    arrays = {name: getattr(example, name)[order] for name in ("runtime_us", "is_vendor", "is_estimate")}
    return replace(example, columns=columns.take(order), **arrays)


def sort_key(shape: ProblemShape) -> tuple[Any, ...]:
    """Return a sort key that follows from the content of a problem."""
    named = tuple((name, str(value)) for name, value in shape.dimensions)
    return shape.op, shape.arithmetic, shape.b, shape.m, shape.n, shape.k, shape.layout, named
