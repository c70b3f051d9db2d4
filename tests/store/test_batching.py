from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_store.values.batching import in_batches

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([], []),
        ([1], [[1]]),
        ([1, 2, 3, 4], [[1, 2], [3], [4]]),
        ([9, 1, 1], [[9], [1, 1]]),
        ([3, 3], [[3], [3]]),
    ],
)
def test_each_batch_but_the_last_reaches_the_limit(weights: list[int], expected: list[list[int]]) -> None:
    """Nothing is lost or put in another order, and no batch is empty."""
    assert list(in_batches(weights, lambda weight: weight, 3)) == expected


def test_batches_come_as_soon_as_they_are_full() -> None:
    """A stream need not end before its first batch is there."""
    taken = []

    def stream() -> Iterator[int]:
        for number in range(4):
            taken.append(number)
            yield number

    assert next(in_batches(stream(), lambda _: 1, 2)) == [0, 1]
    assert taken == [0, 1]
