"""What a model learns to predict, and how times of several regimes become one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import learnable

from diode_store.records import GRAPH, READ_FLUSH, WRITE_FLUSH
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.regimes import WRITE_FLUSH_US
from diode_trainer.data.tensors import pack
from diode_trainer.features import roofline_us


def timed_in(*regimes: str | None) -> ExampleSet:
    """Return one problem for each of ``regimes``."""
    examples = learnable(len(regimes)).examples
    return ExampleSet(tuple(replace(e, regime=regime) for e, regime in zip(examples, regimes, strict=True)))


def learned_us(dataset: ExampleSet) -> list[list[float]]:
    """Return the times that a model is to learn, problem by problem."""
    packed = pack(dataset)
    targets = np.split(packed.target.double().numpy(), np.cumsum(packed.count.numpy())[:-1])
    examples = zip(targets, dataset, strict=True)
    return [(np.exp(target) * roofline_us(e.shape, e.hardware)).tolist() for target, e in examples]


def test_what_was_timed_as_deployed_is_learned_as_it_is() -> None:
    """So is what was timed nobody knows how."""
    for regime in (GRAPH, READ_FLUSH, None):
        dataset = timed_in(regime, regime)
        for learned, example in zip(learned_us(dataset), dataset, strict=True):
            np.testing.assert_allclose(learned, example.runtime_us, rtol=1e-4)


@pytest.mark.parametrize("others", [(GRAPH, READ_FLUSH), (WRITE_FLUSH, WRITE_FLUSH)])
def test_what_was_timed_behind_a_flush_that_writes_is_taken_as_deployed(others: tuple[str, str]) -> None:
    """It is shorter by the same, by three quarters at most, whatever else is learned from; the others stay."""
    dataset = timed_in(WRITE_FLUSH, *others)
    short = replace(dataset.examples[0], runtime_us=np.full(len(dataset.examples[0]), 4.4))
    *learned, last = learned_us(ExampleSet((*dataset.examples, short)))
    for times, example in zip(learned, dataset, strict=True):
        us = example.runtime_us
        deployed = np.maximum(us - WRITE_FLUSH_US, us / 4) if example.regime == WRITE_FLUSH else us
        np.testing.assert_allclose(times, deployed, rtol=1e-4)
    np.testing.assert_allclose(last, 1.1, rtol=1e-4)
