"""Triton kernels of a problem, in the form that a model predicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.candidates.default_space import GemmConfig
    from diode_store.records import ProblemShape

_GROUP_M = 8


def rows_of(template: str, configs: Iterable[GemmConfig], shape: ProblemShape) -> list[tuple[Any, ...]]:
    """Return configs of a template as rows for ``ConfigColumns.from_rows``."""
    return [
        (template, c.block_m, c.block_n, c.block_k, _GROUP_M, c.num_stages, c.num_warps, shape.tf32) for c in configs
    ]
