"""Holes of a coverage map, and the problems that would fill them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import SweepProblem
from diode_explorer.pages import cases
from diode_store.errors import SettingsError
from diode_store.ops.inputs import with_total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

Cell = tuple[int, int]
"""Starts of a cell's octaves: vertical, horizontal."""


@dataclass(frozen=True, order=True)
class Hole:
    """A cell without a problem between cells that have some."""

    cell: Cell
    neighbors: int = field(compare=False)
    """Number of the eight neighbors that have problems."""


def holes(covered: Collection[Cell]) -> list[Hole]:
    """Return the empty cells between covered ones in their row or column.

    Those with most covered neighbors come first.
    """
    if not covered:
        return []
    rows, columns = _spans(covered), _spans([(right, up) for up, right in covered])
    found = []
    for up, right in itertools.product(_octaves(covered, 0), _octaves(covered, 1)):
        cell = up, right
        is_inside = _lies_in(right, rows.get(up)) or _lies_in(up, columns.get(right))
        if is_inside and cell not in covered:
            found.append(Hole(cell, sum(each in covered for each in _around(cell))))
    return sorted(found, key=lambda hole: (-hole.neighbors, hole.cell))


class Filling:
    """Choose the problem that would fill a hole: the common op, dtype, layout and batch with its neighbors' sizes."""

    def __init__(
        self, kind: Mapping[str, Any], sizes: Sequence[Mapping[str, Any]], axes: tuple[str, str], third: str
    ) -> None:
        """Take the common values.

        Args:
            kind: op, dtype, tf32, layout, b and dimensions.
            sizes: most common ``value`` of a ``size`` in an ``octave`` of an ``axis``.
            axes: the vertical and the horizontal size.
            third: the remaining size.
        """
        self._kind, self._axes, self._third = kind, axes, third
        self._usual = {(row["axis"], row["size"], row["octave"]): row["value"] for row in sizes}

    def problem(self, cell: Cell) -> SweepProblem | None:
        """Return the problem; None if a sweep cannot measure it."""
        places = [*zip(self._axes, cell, strict=True)]
        sizes = {axis: self._usual.get((axis, axis, start), start) for axis, start in places}
        thirds = (self._usual.get((axis, self._third, start)) for axis, start in places)
        # Far from all covered cells no size is common; then K equals M.
        sizes[self._third] = next((size for size in thirds if size is not None), cell[0])
        try:
            return SweepProblem.of_shape(with_total(cases.shape_of({**self._kind, **sizes})))
        except SettingsError:
            return None


def _spans(covered: Collection[Cell]) -> dict[int, Cell]:
    """Return the first and the last covered cell of each row."""
    spans: dict[int, Cell] = {}
    for up, right in covered:
        low, high = spans.get(up, (right, right))
        spans[up] = min(low, right), max(high, right)
    return spans


def _octaves(covered: Collection[Cell], axis: int) -> list[int]:
    starts = [cell[axis] for cell in covered]
    return [2**power for power in range(min(starts).bit_length() - 1, max(starts).bit_length())]


def _lies_in(start: int, span: Cell | None) -> bool:
    return span is not None and span[0] < start < span[1]


def _around(cell: Cell) -> Iterator[Cell]:
    up, right = cell
    for each in itertools.product((up / 2, up, up * 2), (right / 2, right, right * 2)):
        if each != cell:
            yield int(each[0]), int(each[1])
