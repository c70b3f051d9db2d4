"""The dry run of a job, which writes nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
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
    from diode_tuning.plan import Round
    from diode_tuning.pool import Pool


@dataclass
class _Foreseen:
    """Problems and kernels that some rounds will measure."""

    chosen: dict[SweepProblem, None] = field(default_factory=dict)
    """Products, in order."""
    by_vendor: list[SweepProblem] = field(default_factory=list)
    """Those among them that are measured with vendor kernels alone."""
    pinned: list[SweepProblem] = field(default_factory=list)
    choices: int = 0
    estimate_s: float = 0.0


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
    foreseen = _measured_by(pool, rounds, done)
    goes_on_with = None if run.plan.rounds[0].problems is None else run.path.name
    measured = pool.measured(0.0, done)
    learned = measured | {problem.problem().key for problem in foreseen.chosen.keys() - foreseen.by_vendor}
    return {
        "hardware": job.hardware.name,
        "devices": [device.name for device in job.devices],
        "cores": pool.cores,
        "targets": len(pool.problems),
        "left_out": pool.left_out,
        "measured_already": len(known),
        "rounds": [asdict(each) for each in run.plan.rounds],
        "budget_s": sum(each.budget_s - each.spent_s for each in rounds),
        "problems": len(foreseen.chosen) - len(foreseen.by_vendor),
        "vendor_problems": len(foreseen.by_vendor),
        "choices": foreseen.choices,
        "estimate_s": foreseen.estimate_s,
        "too_few": _too_few(len(learned), job.enough_minutes(len(measured), unknown), goes_on=goes_on_with is not None)
        if pool.problems
        else None,
        "model": str(installing.target(job.hardware)) if pool.problems else None,
        "goes_on_with": goes_on_with,
        **_of_pinned(job, foreseen.pinned, done),
    }


def _measured_by(pool: Pool, rounds: Sequence[Round], done: set[DoneKey]) -> _Foreseen:
    """Return what rounds will measure, given what is measured."""
    seen = _Foreseen()
    for each in rounds:
        space, left_s = SearchSpace.parse(each.search_space), each.budget_s - each.spent_s
        estimate = pool.estimate(space)
        there, left = pool.known_and_left(space, done, is_pinned=each.is_pinned)
        if each.is_pinned:
            found = pool.in_time(left, left_s, space)
            seen.pinned += found
        else:
            left = [problem for problem in left if problem not in seen.chosen]
            found = pool.chosen([*there, *seen.chosen], left, left_s, space)
            seen.chosen |= dict.fromkeys(found)
        if space.is_vendor:
            seen.by_vendor += found
        else:
            seen.choices += sum(map(estimate.choices, found))
        seen.estimate_s += estimate.seconds(found)
    return seen


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
