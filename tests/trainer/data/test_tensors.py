"""What a model learns to predict, and how times of several regimes become one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from synthetic import learnable

from diode_store.records import GRAPH, READ_FLUSH, WRITE_FLUSH
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.tensors import WRITE_FLUSH_US, pack
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


def test_times_of_one_regime_are_learned_as_they_are() -> None:
    """Whichever it is."""
    for regime in (WRITE_FLUSH, GRAPH, None):
        dataset = timed_in(regime, regime)
        for learned, example in zip(learned_us(dataset), dataset, strict=True):
            np.testing.assert_allclose(learned, example.runtime_us, rtol=1e-4)


def test_beside_others_what_was_timed_behind_a_flush_that_writes_is_taken_as_deployed() -> None:
    """It is shorter by the same everywhere, but by three quarters at most; the other regimes keep their times."""
    dataset = timed_in(WRITE_FLUSH, GRAPH, READ_FLUSH)
    short = replace(dataset.examples[0], runtime_us=np.full(len(dataset.examples[0]), 4.4))
    dataset = ExampleSet((*dataset.examples, short))
    first, second, third, last = learned_us(dataset)
    us = dataset.examples[0].runtime_us
    np.testing.assert_allclose(first, np.maximum(us - WRITE_FLUSH_US, us / 4), rtol=1e-4)
    np.testing.assert_allclose(second, dataset.examples[1].runtime_us, rtol=1e-4)
    np.testing.assert_allclose(third, dataset.examples[2].runtime_us, rtol=1e-4)
    np.testing.assert_allclose(last, 1.1, rtol=1e-4)
