"""What a sweep says when it is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spool_samples import sample

from diode_collectors.sweep.plan import SweepReport
from diode_collectors.sweep.report import print_report
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
