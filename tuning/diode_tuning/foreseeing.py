"""The dry run of a job, which writes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.search_space import SearchSpace
from diode_store.command_line.render import counted
from diode_trainer import catalogue
from diode_tuning import installing, pinning
from diode_tuning.pool import FEWEST_PROBLEMS, SMALLEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_collectors.problems.problem import SweepProblem
    from diode_collectors.sweep.already import DoneKey
    from diode_tuning.job import TuningJob


def foresee(job: TuningJob, *, restart: bool) -> dict[str, Any]:
    """Return the plan of a job as JSON values.

    Args:
        job: Job to look at.
        restart: Whether the job would give up an interrupted run.

    Raises:
        DiodeError: the interrupted run has other options, or its plan or spool cannot be read.
    """
    pool, run = job.pool, job.found(restart=restart)
    rounds = [each for each in run.plan.rounds if not each.is_measured]
    done = pool.done(job.folder.spools())
    known, unknown = pool.known_and_left(pool.space, done)
    chosen: dict[SweepProblem, None] = {}
    by_vendor: list[SweepProblem] = []
    pinned: list[SweepProblem] = []
    choices, estimate_s = 0, 0.0
    for each in rounds:
        space = SearchSpace.parse(each.search_space)
        estimate = pool.estimate(space)
        there, left = pool.known_and_left(space, done, is_pinned=each.is_pinned)
        left_s = each.budget_s - each.spent_s
        if each.is_pinned:
            found = pool.in_time(left, left_s, space)
            pinned += found
        else:
            left = [problem for problem in left if problem not in chosen]
            found = pool.chosen([*there, *chosen], left, left_s, space)
            chosen |= dict.fromkeys(found)
        if space.is_vendor:
            by_vendor += found
        else:
            choices += sum(map(estimate.choices, found))
        estimate_s += estimate.seconds(found)
    goes_on_with = None if run.plan.rounds[0].problems is None else run.path.name
    measured = pool.measured(0.0, done)
    learned = measured | {problem.problem().key for problem in chosen.keys() - by_vendor}
    return {
        "hardware": job.hardware.name,
        "devices": [device.name for device in job.devices],
        "cores": pool.cores,
        "targets": len(pool.problems),
        "left_out": pool.left_out,
        "measured_already": len(known),
        "rounds": [asdict(each) for each in run.plan.rounds],
        "budget_s": sum(each.budget_s - each.spent_s for each in rounds),
        "problems": len(chosen) - len(by_vendor),
        "vendor_problems": len(by_vendor),
        "choices": choices,
        "estimate_s": estimate_s,
        "too_few": _too_few(len(learned), job.enough_minutes(len(measured), unknown), goes_on=goes_on_with is not None)
        if pool.problems
        else None,
        "model": str(installing.target(job.hardware)) if pool.problems else None,
        "goes_on_with": goes_on_with,
        **_of_pinned(job, pinned, done),
    }


def _of_pinned(job: TuningJob, planned: Sequence[SweepProblem], done: set[DoneKey]) -> dict[str, Any]:
    """Return what a run does with convolutions and attention.

    Args:
        job: Job to look at.
        planned: Problems that it measures.
        done: Measured problems.
    """
    pool = job.pool
    ops = {problem.problem().key: problem.op for problem in planned}
    for op in {problem.op for problem in pool.pinned.values()}:
        ops |= dict.fromkeys(pool.measured(0.0, done, ops=(op,)), op)
    wanted = pool.known_and_left(SMALLEST, done, is_pinned=True)[1]
    return {
        "pinned": dict(Counter(problem.op for problem in pool.pinned.values())),
        "pinned_problems": len(planned),
        "too_short": _too_short(len(planned), len(wanted)),
        "other_models": pinning.ops_to_learn(pool, job.hardware, Counter(ops.values())),
        "picks": str(catalogue.user_picks(job.hardware.name)) if pool.pinned else None,
    }


def _too_short(planned: int, wanted: int) -> str | None:
    """Return advice if a budget leaves out some of the problems to pin, else None."""
    if planned >= wanted:
        return None
    told = f"{planned:,} of {wanted:,} named convolutions and calls of attention fit into the budget"
    return f"{told}; give a larger --budget, or run the command again afterwards"


def _too_few(problems: int, enough_minutes: int | None, *, goes_on: bool) -> str | None:
    """Return advice if there will be too few problems to learn from, else None.

    Args:
        problems: Number of problems that there will be.
        enough_minutes: Budget that is enough; None if no budget is.
        goes_on: Whether an interrupted run goes on, whose budget cannot change.
    """
    if problems >= FEWEST_PROBLEMS:
        return None
    remedy = "name more products" if enough_minutes is None else f"give --budget {enough_minutes}m"
    told = f"that makes {counted(problems, 'problem')}, but training needs {FEWEST_PROBLEMS}"
    return f"{told}; {'let the run end, then ' if goes_on else ''}{remedy}"
