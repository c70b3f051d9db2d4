"""The two lanes of the suite: `make test` runs the quick one, `make test-long` the campaigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark.structures import ParameterSet

long = pytest.mark.long


def sizes(quick: int, many: int) -> Sequence[int | ParameterSet]:
    """Return the sizes of a campaign: a small one for every run of the tests, a large one for `make test-long`."""
    return [quick, pytest.param(many, marks=long)]
