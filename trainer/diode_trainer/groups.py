"""Groups of a grouped product under one routing, and the tiles that cover them.

Routing decides at run time how long each group is. The features of a problem assume the sizes that a sweep times
(``diode_store.ops.grouping.group_sizes``).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from diode_store.ops.grouping import COLUMNS, DEPTH, ROWS, alignment_of, group_sizes
from diode_store.ops.work import itemsize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from diode_store.records import ProblemShape

    Floats = NDArray[np.float32]

_FORMS = (ROWS, COLUMNS, DEPTH)
"""Forms whose offsets divide M, N and K."""
_KEPT_SIZES = 256
"""Number of routings whose sizes are cached."""


class Groups:
    """Groups of one problem: their sizes along the dimension that the offsets divide."""

    def __init__(self, shape: ProblemShape) -> None:
        self.form = str(shape.dimension("form"))
        self.dimension = _FORMS.index(self.form)
        """Position of the divided dimension among M, N and K."""
        self.total = int(shape.dimension("total"))
        self.count = shape.b
        self.skew = float(shape.dimension("skew", 0.0))
        self.sizes = _sizes(shape.b, self.total, self.skew, alignment_of(self.form, itemsize(shape.dtype)))
        """Sizes of the groups, shape (groups,)."""
        self.used = int(np.count_nonzero(self.sizes))
        """Number of groups that are not empty."""
        self.mean = self.total / shape.b
        self.longest = int(self.sizes.max())

    def blocks(self, block: int) -> int:
        """Return the number of blocks that cover all groups."""
        return int((-(-self.sizes // block)).sum())

    def tiles(self, blocks: Floats) -> Floats:
        """Return the mean number of blocks that cover a group, for each size of a block; shape (n,)."""
        sizes, place = np.unique(blocks, return_inverse=True)
        counts = np.ceil(self.sizes[:, None] / sizes).sum(0) / self.count
        tiles: Floats = counts.astype(np.float32)[place]
        return tiles

    def is_even(self, blocks: Floats) -> NDArray[np.bool_]:
        """Return whether every group is a multiple of a block, for each size of a block; shape (n,)."""
        sizes, place = np.unique(blocks, return_inverse=True)
        is_even: NDArray[np.bool_] = (self.sizes[:, None] % sizes == 0).all(0)[place]
        return is_even


def groups_of(shape: ProblemShape) -> Groups | None:
    """Return the groups that offsets divide a product into; None without offsets."""
    return Groups(shape) if shape.dimension("total") else None


@lru_cache(maxsize=_KEPT_SIZES)
def _sizes(groups: int, total: int, skew: float, alignment: int) -> NDArray[np.int64]:
    sizes = np.array(group_sizes(groups, total, skew, alignment), dtype=np.int64)
    sizes.flags.writeable = False
    return sizes
