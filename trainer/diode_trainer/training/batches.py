"""Draw the configs that an epoch learns from, and batch them as rectangles.

Lists of configs have very different lengths. An epoch draws a limited number of configs from each, so that a few
exhaustive lists do not take most of its time. The fastest configs and the vendor kernels are always included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from diode_trainer.data.tensors import Packed

_FASTEST = 12
"""Number of fastest configs that every epoch includes."""
PAD = -1
"""Row number that stands for padding."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Positions of the configs of b problems in a rectangle of c columns."""

    rows: Tensor
    """(r,) rows of the configs in the dataset, problem by problem."""
    places: Tensor
    """(r,) positions of the configs in the flattened rectangle."""
    shape: torch.Size
    """(b, c)"""

    @classmethod
    def of_table(cls, table: Tensor) -> Batch:
        """Return the batch of some rows of a table made by ``ConfigLists.draw``."""
        flat = table.flatten()
        places = torch.nonzero(flat != PAD).flatten()
        return cls(flat[places], places, table.shape)

    def rectangle(self, values: Tensor) -> Tensor:
        """Return values of the configs, (E, r), as a zero-padded rectangle (E, b, c)."""
        flat = values.new_zeros(len(values), self.shape.numel())
        return flat.index_copy(1, self.places, values).view(-1, *self.shape)


class ConfigLists:
    """Draws the configs of each problem for an epoch."""

    def __init__(self, packed: Packed, most: int) -> None:
        """Prepare to draw at most ``most`` configs of each problem of ``packed``."""
        problem_of, count = packed.problem_of.cpu(), packed.count.cpu()
        column = torch.arange(len(problem_of)) - (count.cumsum(0) - count)[problem_of]
        width = min(most, int(count.max()))
        self._by_problem = 4.0 * problem_of.double()
        """Sort keys of the problems, spaced wider than the keys of the configs within one problem."""
        self._taken = column < width
        self._places = (problem_of * width + column)[self._taken]
        self._shape = (len(count), width)
        target, vendor = packed.target.cpu(), packed.vendor.cpu()
        of_problem = torch.argsort(problem_of[by_time := torch.argsort(target, stable=True)], stable=True)
        self._kept = vendor.clone()
        self._kept[by_time[of_problem][column < _FASTEST]] = True

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return the rows of the drawn configs by problem: (m, c), padded with -1."""
        turn = torch.rand(len(self._kept), generator=generator, dtype=torch.float64) - self._kept.double()
        order = torch.argsort(self._by_problem + turn)
        table = torch.full((self._shape[0] * self._shape[1],), PAD)
        table[self._places] = order[self._taken]
        return table.view(self._shape)
