"""Triton's kernels of a problem, as a model is asked about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import BATCHED_OPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.inductor_default import GemmConfig
    from diode_store.records import ProblemShape

_GROUP_M = 8


def plain_template(op: str) -> str:
    """Return the template of an op that every GPU has."""
    return "triton::bmm" if op in BATCHED_OPS else "triton::mm"


def rows_of(template: str, configs: Iterable[GemmConfig], shape: ProblemShape) -> list[tuple[Any, ...]]:
    """Return configs of a template as ``ConfigColumns.from_rows`` takes them."""
    return [
        (template, c.block_m, c.block_n, c.block_k, _GROUP_M, c.num_stages, c.num_warps, shape.tf32) for c in configs
    ]
