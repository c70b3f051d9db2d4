"""Folds for evaluation, by problem or by family of problems."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError
from diode_trainer.data.dataset import FEW, sort_key
from diode_trainer.data.held_out import Split
from diode_trainer.routing import unrouted

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.records import ProblemShape
    from diode_trainer.data.dataset import ExampleSet

HOLD_OUT = 5
"""A single fold holds out one part in this many."""
_FEWEST_FAMILIES = 2
_DRAWN = frozenset({"drawn", "uniform", "log-normal"})
"""Families of drawn problems, from ``diode-collect`` and in the bundled data."""
_DRAWN_FOR = "drawn-"
"""Prefix of such a family that names a purpose."""
_COLLECT = "measure another with `diode-collect --family NAME`"


@dataclass(frozen=True)
class Fold:
    """Indices of the training and test problems of a dataset."""

    train: NDArray[np.intp]
    test: NDArray[np.intp]


def split_up(dataset: ExampleSet, split: Split, count: int) -> tuple[Fold, ...]:
    """Return the folds of an evaluation: none for 0, one part in ``HOLD_OUT`` for 1, else ``count``.

    Raises:
        DatasetError: there are fewer distinct problems, or families, than folds.
    """
    if count == 0:
        return ()
    whole = {Split.PROBLEM: folds, Split.FAMILY: family_folds}[split]
    return whole(dataset, count) if count > 1 else whole(dataset, HOLD_OUT)[:1]


def folds(dataset: ExampleSet, count: int, seed: int = 0) -> tuple[Fold, ...]:
    """Split by problem into ``count`` folds; each problem is tested in exactly one.

    Problems with equal op, dtype, sizes and layout stay together, as a model cannot tell them apart. So do the routings
    of a grouped product, as a compile cannot. The split depends on the problems and ``seed`` alone, not on their order.

    Raises:
        DatasetError: there are fewer distinct problems than folds.
    """
    shapes = {unrouted(example.shape) for example in dataset}
    if len(shapes) < count:
        distinct = counted(len(shapes), "distinct problem")
        raise DatasetError(f"{distinct} cannot be split into {count} folds; --folds 0 skips the evaluation, or {FEW}")
    fold_of = _dealt(shapes, count, seed)
    part = np.array([fold_of[unrouted(example.shape)] for example in dataset])
    return tuple(Fold(np.flatnonzero(part != i), np.flatnonzero(part == i)) for i in range(count))


def family_folds(dataset: ExampleSet, count: int) -> tuple[Fold, ...]:
    """Split by family into ``count`` folds of similar size; with as many folds as families each holds out one family.

    Every problem with a family is tested in exactly one fold. The training part of a fold has no problem of the test
    families, nor any that another family shares with them (``holding_out``). Drawn problems have nothing in common, so
    they are held out one by one. Problems without a family only train.

    Raises:
        DatasetError: there are fewer families than folds; names them.
    """
    sizes = Counter(e.family for e in dataset if e.family is not None and not _is_drawn(e.family))
    if len(sizes) < max(count, _FEWEST_FAMILIES):
        there = f"{len(sizes)} families" if len(sizes) != 1 else "one family"
        said = [", ".join(sorted(sizes))] if sizes else []
        if any(_is_drawn(example.family) for example in dataset):
            said.append("drawn problems are none")
        names = f" ({'; '.join(said)})" if said else ""
        remedy = f"use --folds {len(sizes)} or {_COLLECT}" if len(sizes) >= _FEWEST_FAMILIES else _COLLECT
        raise DatasetError(f"{there}{names} cannot be split into {count} folds; {remedy}, or use --split problem")
    groups: list[list[str]] = [[] for _ in range(count)]
    held = [0] * count
    for family, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        least = held.index(min(held))
        groups[least].append(family)
        held[least] += size
    drawn = _dealt({unrouted(e.shape) for e in dataset if e.family is not None and _is_drawn(e.family)}, count, seed=0)
    return tuple(
        _fold(dataset, group, {shape for shape in drawn if drawn[shape] == i}) for i, group in enumerate(groups)
    )


def holding_out(dataset: ExampleSet, families: Collection[str]) -> Fold:
    """Return the fold that tests the problems of ``families``.

    The other problems train, except those that a model cannot tell apart from a test problem.

    Raises:
        DatasetError: a family has no problem in the data; lists the families that have.
    """
    there = {example.family for example in dataset if example.family is not None}
    if unknown := sorted(set(families) - there):
        known = f"there is: {', '.join(sorted(there))}" if there else "these measurements do not name families"
        raise DatasetError(f"no problem of the family {', '.join(map(repr, unknown))}; {known}")
    return _fold(dataset, families)


def _fold(dataset: ExampleSet, families: Collection[str], drawn: Collection[ProblemShape] = ()) -> Fold:
    """Return the fold that tests the problems of ``families`` and the drawn problems of the shapes ``drawn``."""
    shapes = [unrouted(example.shape) for example in dataset]
    pairs = zip([example.family for example in dataset], shapes, strict=True)
    test = np.array([of in families or (shape in drawn and _is_drawn(of)) for of, shape in pairs])
    held = {shapes[i] for i in np.flatnonzero(test)}
    learned = np.array([shape not in held for shape in shapes])
    return Fold(np.flatnonzero(learned), np.flatnonzero(test))


def _dealt(shapes: Collection[ProblemShape], count: int, seed: int) -> dict[ProblemShape, int]:
    """Assign each shape to one of ``count`` folds, depending on the shapes and ``seed`` but not on their order."""
    ordered = sorted(shapes, key=sort_key)
    order = np.random.default_rng(seed).permutation(len(ordered))
    return {ordered[position]: rank % count for rank, position in enumerate(order)}


def _is_drawn(family: str | None) -> bool:
    return family is not None and (family in _DRAWN or family.startswith(_DRAWN_FOR))
