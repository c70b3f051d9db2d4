"""What a sweep says when it is done."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from spool_samples import sample

from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.sweep.devices import device_elsewhere
from diode_collectors.sweep.plan import ProblemResult, SweepReport
from diode_collectors.sweep.report import Estimate, SweepProgress, print_report
from diode_collectors.sweep.statistics import statistics_of

WHERE = Path("spool")


@pytest.mark.parametrize(
    ("left", "place", "remark"),
    [
        ((1, 2, 3), "spool", None),
        ((1,), "spool", "2 of 3 problems ingested already; the table counts the others"),
        ((), "spool", "3 of 3 problems ingested already; none is left to count"),
        ((1, 2, 3), "output", "1 of 4 problems ingested already; the table counts the others"),
    ],
)
def test_what_was_ingested_meanwhile(
    left: tuple[int, ...], place: str, remark: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table counts what is left in the spool; how much of the sweep that lacks is said, also to scripts."""
    statistics = statistics_of(map(sample, left))
    report = SweepReport("ours", 4, measured=3, skipped=1)
    print_report(report, statistics, WHERE, is_file=place == "output", as_json=False)
    printed = capsys.readouterr()
    summary, *remarks = printed.err.splitlines()
    assert summary.startswith("3 of 4 problems measured, ")
    written, spooled = f"written to {WHERE}", f"next: diode-ingest --once --spool {WHERE}"
    assert summary.endswith(
        f"(1 measured already, 0 left nothing to time, 0 failed); {written if place == 'output' else spooled}"
    )
    assert remarks == ([] if remark is None else [remark])
    assert [line.split()[2:4] for line in printed.out.splitlines()[1:2]] == [["mm", str(len(left))]] * bool(left)
    print_report(report, statistics, WHERE, is_file=place == "output", as_json=True)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ([] if remark is None else [remark])
    assert json.loads(printed.out)["dataset"]["problems"] == len(left)


def test_nothing_left_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    """Where all is measured already the summary says that nothing was spooled."""
    print_report(SweepReport("ours", 3, skipped=3), statistics_of([]), WHERE, is_file=False, as_json=False)
    assert capsys.readouterr().err == (
        "0 of 3 problems measured, 0 timings in 0.0 s, 0.0 choices/s (3 measured already, 0 left nothing to time, "
        "0 failed); nothing was spooled\n"
    )


def test_what_is_skipped_is_said_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """Only if there is something."""
    estimate = Estimate([device_elsewhere("h200")[0]], SearchSpace("DEFAULT"), include_tma=False, cores=16)
    with SweepProgress([parse_problem("mm:64x64x64", dtype="bf16")], estimate) as progress:
        progress.on_begin(3, 0)
        progress.on_begin(2, 1)
    assert capsys.readouterr().err.splitlines() == ["1 problem measured already, 2 to go"]


@pytest.mark.parametrize(("limit_s", "left"), [(None, "18 min left"), (200.0, "80 s left"), (100.0, "0 s left")])
def test_no_more_is_left_than_the_time_limit(
    limit_s: float | None, left: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that lists more problems than it has time for ends with its time."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    problems = [parse_problem(f"mm:{1024 * i}x1024x1024", dtype="bf16") for i in range(1, 11)]
    estimate = Estimate([device_elsewhere("h200")[0]], SearchSpace("DEFAULT"), include_tma=False, cores=16)
    with SweepProgress(problems, estimate, limit_s) as progress:
        progress.on_begin(len(problems), 0)
        now += 120
        progress.on_result(ProblemResult(problems[0], "cuda:0", timings=12))
    assert capsys.readouterr().err == f"1 of 10 problems, 0.1 choices/s, {left}\n"
