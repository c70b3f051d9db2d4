"""Check how well a model does on devices it never saw, by leaving out one of its devices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from diode_trainer.covered import CoveredHardware, DeviceCheck, labels
from diode_trainer.data.splits import Fold
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.metrics import judgeable
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import FEWEST_PROBLEMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_trainer.data.dataset import Examples, ExampleSet
    from diode_trainer.training.train import Fit


def left_out(dataset: ExampleSet) -> dict[str, CoveredHardware]:
    """Return the devices to leave out by label: those of architectures with at least two devices."""
    devices = dataset.devices()
    many = Counter(device.architecture for device in devices)
    named = dict(zip(labels(devices), devices, strict=True))
    return {name: device for name, device in named.items() if many[device.architecture] > 1}


def device_folds(dataset: ExampleSet, fold: Fold) -> dict[str, Fold]:
    """Return the training and test problems for each left-out device, by the label of the device.

    Both are parts of ``fold``: its training problems on other devices, and its test problems on this device of the ops
    that other devices show. A fold holds out a problem on all devices, so no training device has shown a test problem.
    """
    found, ops = {}, np.array([example.shape.op for example in dataset])
    for name, device in left_out(dataset).items():
        is_of = np.array([CoveredHardware.of(example.hardware).identity == device.identity for example in dataset])
        learned, judged = fold.train[~is_of[fold.train]], fold.test[is_of[fold.test]]
        judged = judged[np.isin(ops[judged], ops[learned])]
        can_learn = sum(judgeable(dataset.examples[i]) for i in learned) >= FEWEST_PROBLEMS
        if can_learn and any(judgeable(dataset.examples[i]) for i in judged):
            found[name] = Fold(learned, judged)
    return found


def judge_without(
    dataset: ExampleSet, checks: Mapping[str, Fold], fits: Sequence[Fit], own: Fit, split: Fold
) -> tuple[DeviceCheck, ...]:
    """Return the results of each fit on the device left out of its training data.

    Args:
        dataset: examples.
        checks: training and test problems for each left-out device.
        fits: fit for each of ``checks``.
        own: fit of ``split``, which saw other problems of these devices.
        split: fold that ``checks`` are parts of.
    """
    found = []
    for (device, fold), fit in zip(checks.items(), fits, strict=True):
        judged = [dataset.examples[i] for i in fold.test]
        without = _regret(dataset, fit, fold, judged)
        with_it = _regret(dataset, own, Fold(split.train, fold.test), judged)
        found.append(DeviceCheck(device, int(without[0]), without[1], without[2], with_it[1]))
    return tuple(found)


def _regret(dataset: ExampleSet, fit: Fit, fold: Fold, judged: Sequence[Examples]) -> tuple[int, float, float]:
    """Return the number of judgeable problems, and regret@1 and @5 on them."""
    scorer = Scorer(fit.network, dataset.subset(fold.train).domain().templates)
    report = summarise(judge_problems(judged, predict(scorer, judged)))
    return report.problems, report.regret[1].geomean, report.regret[5].geomean
