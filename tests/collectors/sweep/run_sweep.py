"""A program that sweeps as it is told by a JSON argument, and prints what happens, one JSON object a line."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep import engine, kept_kernels, lanes
from diode_collectors.sweep.already import measured_in_spool
from diode_collectors.sweep.plan import SweepPlan
from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from diode_collectors.sweep.plan import ProblemResult
    from diode_store.records import Environment, Hardware


def say(**event: Any) -> None:
    """Print one event."""
    print(json.dumps(event), flush=True)  # noqa: T201 - what it is for


class Reporter:
    """Prints what the sweep tells."""

    def on_device(self, device: str, hardware: Hardware, environment: Environment) -> None:
        """Say which hardware it is."""
        say(event="device", device=device, hardware=hardware.name, torch=environment.torch)

    def on_begin(self, total: int, skipped: int) -> None:
        """Say how many there are."""
        say(event="begin", total=total, skipped=skipped)

    def on_result(self, result: ProblemResult) -> None:
        """Say what became of a problem."""
        say(event="result", **{**asdict(result), "problem": str(result.problem)})

    def on_note(self, message: str) -> None:
        """Say it."""
        say(event="note", message=message)


def main() -> None:
    """Sweep."""
    told = json.loads(sys.argv[1])
    spool = Path(told["spool"])
    if told["quick"]:
        lanes._SERVE = "quick_lane:serve"
    engine.STALL_S = told.get("stall_s", engine.STALL_S)
    kept_kernels._GENERATION = told.get("generation", kept_kernels._GENERATION)
    options = told.get("options", {})
    if "kernels" in options:
        options["kernels"] = Path(options["kernels"])
    problems = tuple(parse_problem(text, dtype=told["dtype"], name=name) for text, name in told["problems"])
    plan = SweepPlan(
        problems,
        spool,
        tuple(told.get("devices", ["cpu"])),
        SearchSpace("DEFAULT"),
        "sweep-of-a-test",
        done=measured_in_spool(spool),
        **options,
    )
    try:
        report = engine.run_sweep(plan, Reporter())
    except DiodeError as error:
        say(event="error", kind=type(error).__name__, message=str(error))
    else:
        say(event="report", **asdict(report))


if __name__ == "__main__":
    main()
