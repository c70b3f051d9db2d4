"""Says what a job would do, and writes nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.search_space import SearchSpace
from diode_integration.tuning import installing
from diode_integration.tuning.pool import FEWEST_PROBLEMS
from diode_store.render import counted

if TYPE_CHECKING:
    from diode_collectors.problems.problem import SweepProblem
    from diode_integration.tuning.job import TuningJob


def foresee(job: TuningJob, *, restart: bool) -> dict[str, Any]:
    """Return what a job would do, for a script or to be printed.

    Args:
        job: which.
        restart: whether an interrupted run would be given up.

    Raises:
        DiodeError: an interrupted run has other options, or its plan or its spool cannot be read.
    """
    pool, run = job.pool, job.found(restart=restart)
    rounds = [each for each in run.plan.rounds if not each.is_measured]
    spaces = {pool.space, *(SearchSpace.parse(each.search_space) for each in rounds)}
    done = pool.done(job.folder.spools())
    by_space = {space: pool.known_and_left(space, done) for space in spaces}
    known, unknown = by_space[pool.space]
    chosen: dict[SweepProblem, None] = {}
    by_vendor: list[SweepProblem] = []
    choices, estimate_s = 0, 0.0
    for each in rounds:
        space = SearchSpace.parse(each.search_space)
        estimate, (there, left) = pool.estimate(space), by_space[space]
        left = [problem for problem in left if problem not in chosen]
        found = pool.chosen([*there, *chosen], left, each.budget_s - each.spent_s, space)
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
        "too_few": _too_few(len(learned), job.enough_minutes(len(measured), unknown), goes_on=goes_on_with is not None),
        "model": str(installing.target(job.hardware)),
        "goes_on_with": goes_on_with,
    }


def _too_few(problems: int, enough_minutes: int | None, *, goes_on: bool) -> str | None:
    """Return what to do so that there is enough to learn from; None if there will be.

    Args:
        problems: that there will be.
        enough_minutes: which budget is enough; None if no budget is.
        goes_on: whether an interrupted run goes on, whose budget cannot be another.
    """
    if problems >= FEWEST_PROBLEMS:
        return None
    remedy = "name more products" if enough_minutes is None else f"give a --budget of {enough_minutes}m"
    told = f"that makes {counted(problems, 'problem')}, and {FEWEST_PROBLEMS} are needed to learn from"
    return f"{told}; {'let it end, then ' if goes_on else ''}{remedy}"
