"""What training says of a device that it leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from synthetic import H200, QUICK, learnable
from synthetic_ops import learnable_ops

from diode_store.devices.known import require_device
from diode_trainer.card import card_path, read_card
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import split_up
from diode_trainer.jobs.job import TrainingJob, run_job
from diode_trainer.jobs.workflow import fit_and_judge
from diode_trainer.judging.devices import device_folds, left_out

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import Hardware
    from diode_trainer.training.train import EpochReport

H100, L4 = require_device("NVIDIA H100 80GB HBM3"), require_device("NVIDIA L4")


def on(device: Hardware, problems: int, seed: int = 0) -> ExampleSet:
    """Return learnable problems as if they had been measured on a device."""
    return ExampleSet(tuple(replace(example, hardware=device) for example in learnable(problems, seed)))


def joined(*parts: ExampleSet) -> ExampleSet:
    """Return the problems of several devices."""
    return ExampleSet(tuple(example for part in parts for example in part))


def test_who_is_left_out() -> None:
    """Each device of an architecture that has at least two; never the only one of its architecture."""
    assert list(left_out(joined(on(H200, 2), on(H100, 2), on(L4, 2)))) == [H100.name, H200.name]
    assert left_out(joined(on(H200, 2), on(L4, 2))) == {}
    half = replace(H100, multiprocessors=66)
    assert list(left_out(joined(on(H100, 2), on(half, 2)))) == [
        "NVIDIA H100 80GB HBM3 (sm_90, 66 multiprocessors)",
        "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors)",
    ]


def test_no_problem_leaks_from_the_other_device() -> None:
    """Both devices were measured on the same problems: a check learns from none of those it is judged by."""
    dataset = joined(on(H200, 40), on(H100, 40))
    (split, *_) = split_up(dataset, Split.PROBLEM, 4)
    folds = device_folds(dataset, split)
    assert list(folds) == [H100.name, H200.name]
    for name, fold in folds.items():
        learned, judged = ([dataset.examples[i] for i in part] for part in (fold.train, fold.test))
        assert {example.hardware.name for example in judged} == {name}
        assert name not in {example.hardware.name for example in learned}
        assert not {example.shape for example in learned} & {example.shape for example in judged}
        assert (len(learned), len(judged)) == (30, 10)


def test_an_op_of_one_device_is_not_judged() -> None:
    """An op that the other devices never measured cannot show how a model carries over."""
    dataset = joined(on(H200, 40), on(H100, 40, seed=1), learnable_ops(40))
    (split, *_) = split_up(dataset, Split.PROBLEM, 4)
    fold = device_folds(dataset, split)[H200.name]
    assert {dataset.examples[i].shape.op for i in fold.test} == {"mm"}
    assert {dataset.examples[i].shape.op for i in split.test} > {"mm"}


def test_nothing_is_checked_that_cannot_be() -> None:
    """Too few problems of the other device to learn from: that device is not left out, the other one is."""
    dataset = joined(on(H200, 40), on(H100, 8, seed=1))
    (split, *_) = split_up(dataset, Split.PROBLEM, 4)
    assert H200.name not in device_folds(dataset, split)


@pytest.mark.quick(1)
@pytest.mark.parametrize("folds", [1, 2])
def test_a_training_on_two_devices_checks_each(folds: int, tmp_path: Path) -> None:
    """Two more fits, counted among the steps; the card keeps their figures. Training without folds has none."""
    dataset = joined(on(H200, 40), on(H100, 40, seed=1))
    job = TrainingJob("m", QUICK, folds, 42, "cpu", tmp_path / "m.pt", "")
    steps: list[None] = []
    trained = run_job(dataset, job, lambda: steps.append(None))
    assert 0 < len(steps) <= job.steps(dataset)
    assert job.steps(dataset) - job.steps(on(H200, 40)) == 2 * QUICK.epochs
    checks = read_card(card_path(job.path)).domain.device_checks
    assert [check.device for check in checks] == [H100.name, H200.name]
    assert checks == trained.card.domain.device_checks
    for check in checks:
        assert 0 < check.problems <= 40
        assert 1 <= check.regret_at_5 <= check.regret_at_1 < 2
        assert check.regret_at_1_own >= 1
    assert job.checks(dataset) == 2
    assert replace(job, folds=0).checks(dataset) == 0


def test_the_fits_are_named() -> None:
    """So that checkpoints and progress tell them apart."""
    heard: set[str] = set()

    def hear(fit: str, _report: EpochReport) -> None:
        heard.add(fit)

    result = fit_and_judge(joined(on(H200, 30), on(H100, 30)), QUICK, 2, on_epoch=hear)
    assert {"final", "fold 1", "fold 2", "without nvidia-h200", "without nvidia-h100-80gb-hbm3"} <= heard
    assert result.evaluation is not None
    assert len(result.evaluation.fits) == 2
    assert fit_and_judge(joined(on(H200, 15), on(H100, 15)), QUICK, 0).device_checks == ()
