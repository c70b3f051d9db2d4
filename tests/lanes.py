"""The two lanes of the suite: `make test` runs the quick one, `make test-long` the campaigns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark.structures import ParameterSet

long = pytest.mark.long


def sizes(quick: int, many: int) -> Sequence[int | ParameterSet]:
    """Return the sizes of a campaign: a small one for every run of the tests, a large one for `make test-long`."""
    return [quick, pytest.param(many, marks=long)]


def mostly_long(examples: Sequence[Any], quick: int) -> list[Any]:
    """Return examples for ``parametrize``: the first ``quick`` are for every run, the others for `make test-long`."""
    campaigns = (each if isinstance(each, tuple) else (each,) for each in examples[quick:])
    return [*examples[:quick], *(pytest.param(*each, marks=long) for each in campaigns)]
