"""Leave most examples of an expensive test to ``make test-long``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def mostly_long(examples: Sequence[Any], quick: int) -> list[Any]:
    """Return examples for ``parametrize``, of which the first ``quick`` run each time and the others in campaigns."""
    campaigns = (each if isinstance(each, tuple) else (each,) for each in examples[quick:])
    return [*examples[:quick], *(pytest.param(*each, marks=pytest.mark.long) for each in campaigns)]
