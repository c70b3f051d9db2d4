"""Fixtures of the report's tests: judged problems, and all that a report is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import learnable

from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.report.evaluation.content import Evidence, Judged
from diode_trainer.report.evaluation.rows import HELD_OUT, LEARNED_FROM, LossPoint
from diode_trainer.report.evaluation.spread import Foreseen
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from diode_trainer.judging.judgement import ProblemJudgement

FAMILIES = ("llama3-8b", "drawn")


@pytest.fixture(scope="session")
def judged() -> Judged:
    """Return 30 problems in two families, ranked by times that are off by 20%, beside worse rankings."""
    dataset = [replace(example, family=FAMILIES[i % 2]) for i, example in enumerate(learnable(30))]
    noise = np.random.default_rng(1)

    def off_by(share: float) -> tuple[ProblemJudgement, ...]:
        times = [e.runtime_us * np.exp(noise.normal(0, share, len(e))) for e in dataset]
        return judge_problems(dataset, [Prediction.without_members(each) for each in times])

    found = {"quick": off_by(0.2), "careless": off_by(0.6), "random": off_by(9.0)}
    return Judged(
        title="All choices: 30 problems",
        model="quick",
        reports={name: summarise(judgements) for name, judgements in found.items()},
        regrets={name: np.array([[*j.regret.values()] for j in judgements]) for name, judgements in found.items()},
        judgements=found["quick"],
        left_out=("left out Inductor DEFAULT: the data holds none of it",),
    )


@pytest.fixture(scope="session")
def judgements(judged: Judged) -> tuple[ProblemJudgement, ...]:
    """Return the judged problems."""
    return judged.judgements


@pytest.fixture(scope="session")
def evidence(judged: Judged) -> Evidence:
    """Return all that a report may show."""
    history = tuple(
        LossPoint(fit, part, epoch, 1.0 / epoch)
        for fit in ("final", "fold 1")
        for part in (LEARNED_FROM, HELD_OUT)
        for epoch in (1, 2, 3)
    )
    count = len(judged.judgements)
    return Evidence(
        heading="quick on NVIDIA H200",
        summary="A model that was made up.",
        judged=(judged,),
        notes=("It was made up.",),
        facts={"Model": {"name": "quick", "created": "2026-11-20"}, "Data": {"problems": "30"}},
        foreseen=Foreseen(np.linspace(0, 0.1, count), np.linspace(1, 0, count)),
        history=history,
    )
