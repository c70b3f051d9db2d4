"""Choices that do not compile, as Inductor finds out before it times any."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch._inductor.select_algorithm import AlgorithmSelectorCache

if TYPE_CHECKING:
    from collections.abc import Callable

PRECOMPILE = AlgorithmSelectorCache.make_precompile_fn
PRECOMPILES = sys.version_info >= (3, 11, 9)
"""Whether Inductor compiles choices beforehand; before it does nothing, for a bug of Python's."""


def precompile_like_inductor(_cache: Any, choices: Any, *_: Any, **__: Any) -> Callable[[], dict[Any, float]]:
    """Return what Inductor's ``make_precompile_fn`` would: compile each choice, and mark those that fail."""

    def run() -> dict[Any, float]:
        for choice in choices:
            try:
                if hasattr(choice, "precompile"):
                    choice.precompile()
            except RuntimeError:
                choice.mark_failed()
        return {}

    return run


def block_m_is_64(choice: Any) -> bool:
    """Pick some choices."""
    return bool(choice.info_dict()["tile_shape"].startswith("(64,"))
