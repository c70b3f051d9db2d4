"""What to learn from and what to judge by: folds of problems, or of whole families of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diode_store.errors import DatasetError
from diode_store.render import counted
from diode_trainer.data.dataset import FEW, sort_key
from diode_trainer.data.held_out import Split

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.records import ProblemShape
    from diode_trainer.data.dataset import ExampleSet

HOLD_OUT = 5
"""A single held-out fold is one part in this many."""
_FEWEST_FAMILIES = 2
_DRAWN = frozenset({"drawn", "uniform", "log-normal"})
"""What drawn problems have for a family: those of ``diode-collect``, and the bundled ones."""
_DRAWN_FOR = "drawn-"
"""What it begins with where it says what they were drawn for."""
_COLLECT = "measure another with `diode-collect --family NAME`"


@dataclass(frozen=True)
class Fold:
    """Indices of a dataset's problems: what to learn from and what to judge by."""

    train: NDArray[np.intp]
    test: NDArray[np.intp]


def split_up(dataset: ExampleSet, split: Split, count: int) -> tuple[Fold, ...]:
    """Return the folds of an evaluation: none for 0, one part in ``HOLD_OUT`` for 1, else ``count``.

    Raises:
        DatasetError: fewer distinct problems, or families, than folds.
    """
    if count == 0:
        return ()
    whole = {Split.PROBLEM: folds, Split.FAMILY: family_folds}[split]
    return whole(dataset, count) if count > 1 else whole(dataset, HOLD_OUT)[:1]


def folds(dataset: ExampleSet, count: int, seed: int = 0) -> tuple[Fold, ...]:
    """Split by problem into ``count`` folds; each problem is judged by exactly one.

    Problems that a model cannot tell apart (same op, dtype, sizes and layout, whatever the device, environment, regime
    or strides) stay together. The split depends on the problems and ``seed`` alone, not on their order.

    Raises:
        DatasetError: fewer distinct problems than folds.
    """
    shapes = {example.shape for example in dataset}
    if len(shapes) < count:
        distinct = counted(len(shapes), "distinct problem")
        raise DatasetError(f"{distinct} cannot be split into {count} folds; {FEW}")
    fold_of = _dealt(shapes, count, seed)
    part = np.array([fold_of[example.shape] for example in dataset])
    return tuple(Fold(np.flatnonzero(part != i), np.flatnonzero(part == i)) for i in range(count))


def family_folds(dataset: ExampleSet, count: int) -> tuple[Fold, ...]:
    """Split by family into ``count`` folds of about as many problems; as many folds as families hold out one at a time.

    Every problem that has a family is judged by exactly one fold. What a fold learns from has no problem of the
    families that it is judged by, nor any that another family shares with them (``holding_out``). Drawn problems are
    no family, since they have nothing in common but what they were drawn from: each is held out by itself. Problems
    without a family are only learned from.

    Raises:
        DatasetError: fewer families than folds; names them.
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
    drawn = _dealt({e.shape for e in dataset if e.family is not None and _is_drawn(e.family)}, count, seed=0)
    return tuple(
        _fold(dataset, group, {shape for shape in drawn if drawn[shape] == i}) for i, group in enumerate(groups)
    )


def holding_out(dataset: ExampleSet, families: Collection[str]) -> Fold:
    """Return the fold that is judged by the problems of ``families``.

    It learns from the others, but not from a problem that a model cannot tell apart from one of them.

    Raises:
        DatasetError: a family has no problem here; lists those that have.
    """
    there = {example.family for example in dataset if example.family is not None}
    if unknown := sorted(set(families) - there):
        known = f"there is: {', '.join(sorted(there))}" if there else "these measurements do not name families"
        raise DatasetError(f"no problem of the family {', '.join(unknown)}; {known}")
    return _fold(dataset, families)


def _fold(dataset: ExampleSet, families: Collection[str], drawn: Collection[ProblemShape] = ()) -> Fold:
    """Return the fold that is judged by the problems of ``families``, and by drawn ones of the shapes ``drawn``."""
    test = np.array([e.family in families or (e.shape in drawn and _is_drawn(e.family)) for e in dataset])
    held = {dataset.examples[i].shape for i in np.flatnonzero(test)}
    learned = np.array([example.shape not in held for example in dataset])
    return Fold(np.flatnonzero(learned), np.flatnonzero(test))


def _dealt(shapes: Collection[ProblemShape], count: int, seed: int) -> dict[ProblemShape, int]:
    """Return which of ``count`` folds each shape is in; it depends on the shapes and ``seed``, not on their order."""
    ordered = sorted(shapes, key=sort_key)
    order = np.random.default_rng(seed).permutation(len(ordered))
    return {ordered[position]: rank % count for rank, position in enumerate(order)}


def _is_drawn(family: str | None) -> bool:
    return family is not None and (family in _DRAWN or family.startswith(_DRAWN_FOR))
