"""The plan of a tuning run on disk, and what goes on with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from diode_collectors.problems.problem import SweepProblem
from diode_store.errors import DiodeError, SettingsError
from diode_tuning.plan import DeviceFolder, Plan, Round, RunFolder, Stage, check_same
from strange import strange_entries

if TYPE_CHECKING:
    from pathlib import Path

REQUEST = {"products": "abc", "--budget": 60.0}


@pytest.fixture
def folder(tmp_path: Path) -> DeviceFolder:
    """Return the folder of a device without runs."""
    return DeviceFolder(tmp_path / "device")


def begun(folder: DeviceFolder) -> RunFolder:
    """Return a run whose first problems are chosen."""
    run = folder.begin(Plan(REQUEST, [Round(30.0, "SAMPLE:24"), Round(30.0, "SAMPLE:24")]))
    run.choose(1, [SweepProblem("mm", 16, 32, 64, name="family/layer"), SweepProblem("mm", 8, 8, 8)])
    return run


def test_a_run_is_found_again(folder: DeviceFolder) -> None:
    """What was chosen and spent is on disk, as a shape set that names where problems come from."""
    assert folder.unfinished() is None
    run = begun(folder)
    assert run.problems_file(1).read_text() == "mm:16x32x64/nn/bf16  # family/layer\nmm:8x8x8/nn/bf16\n"
    run.plan.rounds[0].spent_s = 12.5
    run.save()
    found = folder.unfinished()
    assert found is not None
    assert (found.path, found.plan) == (run.path, run.plan)
    assert [each.problems for each in found.plan.rounds] == [2, None]


def test_a_run_that_is_done_is_followed_by_another(folder: DeviceFolder) -> None:
    """The next one gets a folder of its own."""
    run = begun(folder)
    run.plan.stage = Stage.DONE
    run.save()
    assert folder.unfinished() is None
    assert folder.begin(Plan(REQUEST, [Round(1.0, "SAMPLE:24")])).path.name == "run-0002"


def test_what_a_round_leaves_goes_to_the_next(folder: DeviceFolder) -> None:
    """By what they have; a round that took longer leaves nothing, and the last has nobody to leave anything to."""
    plan = folder.begin(
        Plan(REQUEST, [Round(30.0, "SAMPLE:24"), Round(30.0, "SAMPLE:24"), Round(30.0, "SAMPLE:24")])
    ).plan
    plan.rounds[0].spent_s = 10.0
    plan.pass_on(1)
    assert [each.budget_s for each in plan.rounds] == [30.0, 40.0, 40.0]
    plan.rounds[1].spent_s = 45.0
    plan.pass_on(2)
    plan.pass_on(3)
    assert [each.budget_s for each in plan.rounds] == [30.0, 40.0, 40.0]
    plan.rounds[1:] = [Round(45.0, "SAMPLE:24"), Round(5.0, "VENDOR")]
    plan.pass_on(1)
    assert [each.budget_s for each in plan.rounds] == [30.0, 63.0, 7.0]


def test_other_options_do_not_go_on(folder: DeviceFolder) -> None:
    """The message names the options that differ, as they are typed."""
    plan = begun(folder).plan
    check_same(plan, dict(REQUEST))
    with pytest.raises(SettingsError, match="has another list of products and --budget; repeat its options"):
        check_same(plan, {"products": "xyz", "--budget": 61.0})


@pytest.mark.parametrize(
    "change",
    [
        "",
        "[]",
        {"version": 1},
        {"request": 5},
        {"rounds": []},
        {"rounds": [{"budget_s": "x"}]},
        {"rounds": [{"unknown": 1}]},
        {"stage": "resting"},
    ],
    ids=str,
)
def test_a_damaged_plan(folder: DeviceFolder, change: str | dict[str, Any]) -> None:
    """It is refused in one line that says what helps."""
    path = begun(folder).path / "plan.json"
    path.write_text(change if isinstance(change, str) else json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DiodeError, match=r"plan.json: cannot be read \(.*\); give --restart to plan a new run"):
        folder.unfinished()


def test_one_at_a_time(folder: DeviceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process waits for the lock a while, and then says who has it."""
    monkeypatch.setattr("diode_tuning.plan._WAIT_S", 0.0)
    with folder.locked(), pytest.raises(DiodeError, match="another diode tune is running"), folder.locked():
        raise AssertionError
    with folder.locked() as descriptor:
        assert descriptor > 0


def test_what_was_not_fetched(folder: DeviceFolder) -> None:
    """Spools of all runs count that hold records."""
    spool = begun(folder).spool
    spool.mkdir()
    assert folder.spools() == []
    (spool / "a.seg").write_bytes(b"")
    assert folder.spools() == [spool]


def test_runs_are_found_beside_what_is_strange(folder: DeviceFolder, tmp_path: Path) -> None:
    """Only a folder that is named like a run is one; a link of such a name may lead anywhere."""
    run = begun(folder)
    run.save()
    spool = run.path / "spool"
    spool.mkdir()
    (spool / "a.seg").touch()
    strange_entries(folder.path, tmp_path / "outside", ".json")
    for name, target in (("run-0002", "x" * 300), ("run-0003", "run-0003"), ("run-0004", "/dev/zero")):
        (folder.path / name).symlink_to(target)
    (folder.path / "run-last").mkdir()
    assert (folder.runs(), folder.spools()) == ([run.path], [spool])
