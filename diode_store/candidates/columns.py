"""Many kernel configs as NumPy columns, for vectorized computation.

The hook and the trainer share this type, so that a model predicts from the same values it was trained on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.kernels import INT_COLUMNS
from diode_store.records import KernelConfig, is_vendor_template

__all__ = ["GRADIENT_BLOCKS", "INT_COLUMNS", "ConfigColumns"]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

GRADIENT_BLOCKS = ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
"""Keyword arguments with the blocks of attention's gradients: of keys and values first, then of queries."""


@dataclass(frozen=True, eq=False)
class ConfigColumns:
    """``n`` kernel configs; an absent number is 0. All arrays have shape (n,); do not change them.

    Lists with the same configs in the same order are equal, so that results for one list can be cached.
    """

    templates: tuple[str, ...]
    """The distinct template uids."""
    template_index: NDArray[np.int32]
    """Index into ``templates`` for each config."""
    block_m: NDArray[np.int32]
    block_n: NDArray[np.int32]
    block_k: NDArray[np.int32]
    group_m: NDArray[np.int32]
    num_stages: NDArray[np.int32]
    num_warps: NDArray[np.int32]
    allow_tf32: NDArray[np.bool_]
    gradient_blocks: NDArray[np.int32] | None = None
    """Blocks of attention's gradients as ``GRADIENT_BLOCKS`` names them, shape (n, 4); None if no config has them."""

    def __len__(self) -> int:
        """Return n."""
        return len(self.template_index)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` has the same configs in the same order."""
        return self is other or (isinstance(other, ConfigColumns) and self.digest == other.digest)

    def __hash__(self) -> int:
        """Return a hash of the configs."""
        return hash(self.digest)

    @cached_property
    def digest(self) -> bytes:
        """16-byte digest of the configs and their order."""
        digest = hashlib.blake2b("\0".join(self.templates).encode(), digest_size=16)
        for name in ("template_index", *INT_COLUMNS, "allow_tf32"):
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        if self.gradient_blocks is not None:
            digest.update(np.ascontiguousarray(self.gradient_blocks).data)
        return digest.digest()

    @cached_property
    def largest_block_k(self) -> int:
        """The largest BLOCK_K; 0 if no config has one."""
        return int(self.block_k.max(initial=0))

    @classmethod
    def from_configs(cls, configs: Sequence[KernelConfig]) -> ConfigColumns:
        """Collect the columns of ``configs``, in their order."""
        rows = [(c.template, *(getattr(c, name) or 0 for name in INT_COLUMNS), c.allow_tf32 or False) for c in configs]
        return cls.from_rows(rows, [c.kwargs for c in configs])

    @classmethod
    def from_rows(
        cls, rows: Sequence[tuple[Any, ...]], kwargs: Sequence[Sequence[Sequence[Any]]] = ()
    ) -> ConfigColumns:
        """Collect rows of (template, the ``INT_COLUMNS`` in order, allow_tf32).

        Args:
            rows: the rows.
            kwargs: pairs of a name and a value for each row; without them no row has ``gradient_blocks``.
        """
        names = [row[0] for row in rows]
        templates = tuple(dict.fromkeys(names))
        index = {template: i for i, template in enumerate(templates)}
        numbers = np.array([row[1:] for row in rows], dtype=np.int32).reshape(len(rows), len(INT_COLUMNS) + 1)
        template_index = np.array([index[name] for name in names], dtype=np.int32)
        by_column = dict(zip(INT_COLUMNS, np.ascontiguousarray(numbers.T), strict=False))
        blocks = _gradient_blocks(kwargs)
        return cls(templates, template_index, allow_tf32=numbers[:, -1] != 0, gradient_blocks=blocks, **by_column)

    @classmethod
    def joined(cls, parts: Sequence[ConfigColumns]) -> ConfigColumns:
        """Return the configs of all ``parts``, end to end."""
        templates = tuple(dict.fromkeys(template for part in parts for template in part.templates))
        places = [np.array([templates.index(name) for name in part.templates], np.int32) for part in parts]
        index = [place[part.template_index] for place, part in zip(places, parts, strict=True)]
        names = (*INT_COLUMNS, "allow_tf32")
        arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names if parts}
        if not parts:
            return cls.from_rows([])
        blocks = None
        if any(part.gradient_blocks is not None for part in parts):
            blocks = np.concatenate([_blocks_or_zeros(part) for part in parts])
        return cls(templates, np.concatenate(index), **arrays, gradient_blocks=blocks)

    def config(self, index: int) -> KernelConfig:
        """Return the config at ``index``, with the fields that have columns."""
        template = self.templates[self.template_index[index]]
        numbers: dict[str, Any] = {name: int(getattr(self, name)[index]) or None for name in INT_COLUMNS}
        allow_tf32 = None if is_vendor_template(template) else bool(self.allow_tf32[index])
        blocks = () if self.gradient_blocks is None else self.gradient_blocks[index].tolist()
        kwargs = sorted(zip(GRADIENT_BLOCKS, blocks, strict=True)) if any(blocks) else ()
        return KernelConfig(template, allow_tf32=allow_tf32, kwargs=tuple(kwargs), **numbers)

    def take(self, selection: NDArray[Any]) -> ConfigColumns:
        """Return the configs that ``selection``, a boolean mask or indices, picks."""
        names = ("template_index", *INT_COLUMNS, "allow_tf32")
        arrays = {name: getattr(self, name)[selection] for name in names}
        blocks = None if self.gradient_blocks is None else self.gradient_blocks[selection]
        return ConfigColumns(self.templates, **arrays, gradient_blocks=blocks)

    def template_mask(self, predicate: Any) -> NDArray[np.bool_]:
        """Return which configs' template satisfies ``predicate(uid)``."""
        flags = np.array([bool(predicate(template)) for template in self.templates], dtype=np.bool_)
        return flags[self.template_index]


def kwargs_of_text(text: str | None) -> list[list[Any]]:
    """Return the keyword arguments of a warehouse's config: pairs of a name and a value."""
    found: list[list[Any]] = json.loads(text or "[]")
    return found


def _gradient_blocks(kwargs: Sequence[Sequence[Sequence[Any]]]) -> NDArray[np.int32] | None:
    """Return the blocks of attention's gradients among keyword arguments, shape (n, 4); None if there are none."""
    found = [{name: value for name, value in pairs if name in GRADIENT_BLOCKS} for pairs in kwargs]
    if not any(found):
        return None
    return np.array([[named.get(name, 0) for name in GRADIENT_BLOCKS] for named in found], dtype=np.int32)


def _blocks_or_zeros(part: ConfigColumns) -> NDArray[np.int32]:
    if part.gradient_blocks is None:
        return np.zeros((len(part), len(GRADIENT_BLOCKS)), dtype=np.int32)
    return part.gradient_blocks
