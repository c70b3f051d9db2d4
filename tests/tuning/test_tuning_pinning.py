"""Attention and convolutions in `diode tune`: their share of the budget, and what the next process has of it.

Real commands ingest and train. The sweep alone is stood in for, since it needs a GPU: its result are bundled timings of
an H200.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import diode_tuning.job
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_collectors.problems.selection import ProblemRequest
from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_collectors.spool.writer import SpoolWriter
from diode_collectors.sweep.already import DoneKey
from diode_collectors.sweep.devices import SweepDevice, device_elsewhere
from diode_integration.settings import HookSettings, tuned_picks
from diode_store.errors import SettingsError
from diode_store.exchange.picks_reading import read_picks
from diode_store.ops import OPS
from diode_store.system.resources import bundled_data_dir
from diode_trainer import catalogue
from diode_trainer.card import ATTENTION_PURPOSE, card_path, read_card
from diode_tuning import pinning
from diode_tuning.foreseeing import foresee
from diode_tuning.job import TuneRequest, TuningJob
from diode_tuning.plan import DeviceFolder, Stage
from diode_tuning.pool import Pool
from diode_tuning.running import Commands

if TYPE_CHECKING:
    from diode_store.records import Measurement

BUNDLED = bundled_data_dir() / "h200-2026-11-attention-convolutions-0000.seg"
CALLS = "flex_attention:4x16x2048x64:4x2048/causal", "flex_decoding:8x32x1x128:8x8192"
IMAGES = ("convolution:8x320x64x64:320x3x3/padding1",)
OP, DRIVERS = "flex_decoding", ("1.0", "2.0")
PRODUCTS = tuple(f"mm:{64 * i}x512x512" for i in range(1, 7))
H200, L40S = device_elsewhere("h200")[0], device_elsewhere("l40s")[0]


def pool(tmp_path: Path, *shapes: str, device: SweepDevice = H200) -> Pool:
    """Return the pool of named problems."""
    return Pool([device], ProblemRequest(shapes=shapes), database=str(tmp_path / "absent.db"), cores=16)


def test_the_budget_is_shared_by_what_was_named(tmp_path: Path) -> None:
    """Each named problem counts alike; what attention and convolutions do not need goes to the products."""
    found = pool(tmp_path, *CALLS, *IMAGES, *PRODUCTS)
    assert (len(found.pinned), len(found.asked), len(found.problems)) == (3, 9, 60)
    first, *others = found.rounds(90.0)
    assert (first.is_pinned, first.search_space) == (True, "SAMPLE:96")
    assert first.budget_s <= 30.0
    assert sum(each.budget_s for each in others) == pytest.approx(90.0 - first.budget_s)
    assert not any(each.is_pinned for each in others)
    first, *others = found.rounds(3600.0)
    assert first.search_space == "EXHAUSTIVE"
    assert first.budget_s < 300.0
    assert sum(each.budget_s for each in others) == pytest.approx(3600.0 - first.budget_s)


def test_a_small_budget_times_the_first_problems(tmp_path: Path) -> None:
    """In the order in which they were named, and at least one."""
    found = pool(tmp_path, *CALLS, *IMAGES)
    assert found.problems == {}
    (only,) = found.rounds(2.0)
    assert (only.budget_s, only.search_space, only.is_pinned) == (2.0, "SAMPLE:12", True)
    job = TuningJob([H200], request(tmp_path, *CALLS, *IMAGES), DeviceFolder(tmp_path / "runs"), 16)
    problems, guide = job.choose(1, only, tmp_path / "interim.pt")
    assert ([problem.op for problem in problems], guide) == (["flex_attention", "flex_decoding", "convolution"], {})
    foreseen = foresee(job, restart=False)
    assert (foreseen["model"], foreseen["problems"], foreseen["too_few"]) == (None, 0, None)
    assert foreseen["pinned"] == {"flex_attention": 1, "flex_decoding": 1, "convolution": 1}
    assert foreseen["picks"] == str(catalogue.user_picks("NVIDIA H200"))


@pytest.mark.parametrize(("device", "problems", "learned"), [(L40S, 10, True), (L40S, 9, False), (H200, 10, False)])
def test_which_ops_get_a_model(tmp_path: Path, device: SweepDevice, problems: int, *, learned: bool) -> None:
    """Ten named problems are enough, on a device that no shipped model of the op knows."""
    found = pool(tmp_path, *CALLS, *IMAGES, device=device)
    counts = {"flex_decoding": problems, "convolution": 9, "flex_attention_backward": 100}
    assert pinning.ops_to_learn(found, device.hardware, counts) == ["flex_decoding"] * learned


class WithBundled(Commands):
    """Runs real commands, except the sweep, which ends with bundled timings as if they were of this device."""

    segment = BUNDLED

    def run(self, *arguments: str, **options: Any) -> Any:
        """Run a command."""
        if arguments[0] != "collect":
            return super().run(*arguments, **options)
        spool = Path(dict(pairwise(arguments))["--spool"])
        spool.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.segment, spool)
        return {"measured": 694, "skipped": 0, "timings": 12_000, "seconds": 60.0}


def request(tmp_path: Path, *shapes: str) -> TuneRequest:
    """Return a request for named problems."""
    return TuneRequest(ProblemRequest(shapes=shapes), 60.0, str(tmp_path / "warehouse.db"), folds=0)


def test_the_next_process_has_the_fastest_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picks file of the device, which the hook finds without a setting. A shipped model knows the device already."""
    one = next(iter(measurements_in(BUNDLED)))
    device = SweepDevice("cuda:0", one.hardware, one.environment)
    monkeypatch.setattr(diode_tuning.job, "Commands", WithBundled)
    job = TuningJob([device], request(tmp_path, *CALLS, *IMAGES), DeviceFolder(tmp_path / "runs"), 16)
    assert tuned_picks(one.hardware) is None
    report = job.run(0, restart=False, captures=True)
    assert (report["model"], report["training"], report["other_models"]) == (None, None, [])
    last = job.folder.last()
    assert last is not None
    assert last.plan.stage is Stage.DONE
    path = tuned_picks(one.hardware)
    assert report["picks"] == {"file": str(path), "picks": 678}
    assert path is not None
    picks = read_picks(path).picks
    measured = {m.problem.key: m for m in measurements_in(BUNDLED)}
    fastest = {key: min(t.runtime_us or 1e9 for t in m.timings) for key, m in measured.items()}
    assert {key: pick.runtime_us for key, pick in picks.items()} == pytest.approx(
        {key: fastest[key] for key in picks}, rel=1e-4
    )
    left_out = [measured[key] for key in measured.keys() - picks.keys()]
    for m in left_out:  # of a kernel larger than 1 x 1, whose results with 8 warps cannot be trusted
        best = min(m.timings, key=lambda timing: timing.runtime_us or 1e9)
        assert (m.problem.op, best.config.num_warps) == ("convolution", 8)
    found = HookSettings.of().read_picks(one.hardware)
    assert found is not None
    assert found.file == str(path)
    assert HookSettings.of(picks="").read_picks(one.hardware) is None
    monkeypatch.setenv("DIODE_PICKS", "")
    assert HookSettings.of().read_picks(one.hardware) is None


def test_other_software_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Picks are bound to the software in which they were measured; new ones replace those of the same problems."""
    one = next(iter(measurements_in(BUNDLED)))
    monkeypatch.setattr(diode_tuning.job, "Commands", WithBundled)
    devices = [SweepDevice("cuda:0", one.hardware, replace(one.environment, driver=driver)) for driver in DRIVERS]
    wanted = request(tmp_path, "flex_decoding:8x32x1x128:8x8192")
    kept = []
    for device in devices:
        some = [m for m in measurements_in(BUNDLED) if m.problem.op == OP][:3]
        moved = [replace(m, uid=uuid.uuid4().bytes, environment=device.environment) for m in some]
        monkeypatch.setattr(WithBundled, "segment", sealed(tmp_path / device.environment.driver, moved))
        job = TuningJob([device], wanted, DeviceFolder(tmp_path / "runs"), 16)
        assert job.pool.known_and_left(job.pool.space, is_pinned=True)[0] == []
        assert job.run(0, restart=False, captures=True)["picks"]["picks"] == 3
        path = tuned_picks(one.hardware)
        assert path is not None
        kept.append({pick.environment.driver for pick in read_picks(path).picks.values()})
    assert kept == [{"1.0"}, {"2.0"}]


def test_the_shipped_model_guides_the_products_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of attention and convolutions before them teaches no model of products."""
    asked: list[int] = []
    monkeypatch.setattr(TuningJob, "choose", lambda _self, number, *_: (asked.append(number), ([], {}))[1])
    job = TuningJob([H200], request(tmp_path, *CALLS, *PRODUCTS), DeviceFolder(tmp_path / "runs"), 16)
    run = job.found(restart=False)
    assert [each.is_pinned for each in run.plan.rounds] == [True, *[False] * (len(run.plan.rounds) - 1)]
    for number, each in enumerate(run.plan.rounds, 1):
        job._round(run, number, each, None)  # type: ignore[arg-type] # nothing is measured
    assert asked == [1, *range(1, len(run.plan.rounds))]


def test_convolutions_are_measured_once(tmp_path: Path) -> None:
    """Each search space has the same templates of them, so that a larger one has nothing to add."""
    found = pool(tmp_path, *IMAGES, *CALLS)
    environment = H200.environment
    done = {
        DoneKey.of(problem.problem(), H200.hardware, environment, "DEFAULT", None) for problem in found.pinned.values()
    }
    known, left = found.known_and_left(SearchSpace("EXHAUSTIVE"), done, is_pinned=True)
    assert ([each.op for each in known], {each.op for each in left}) == (
        ["convolution"],
        {"flex_attention", "flex_decoding"},
    )


def test_timings_of_other_software_are_not_picked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of torch has other kernels, so nothing was measured for this one; the command says so."""
    one = next(iter(measurements_in(BUNDLED)))
    device = SweepDevice("cuda:0", one.hardware, replace(one.environment, torch="2.99"))
    monkeypatch.setattr(diode_tuning.job, "Commands", WithBundled)
    job = TuningJob([device], request(tmp_path, *CALLS), DeviceFolder(tmp_path / "runs"), 16)
    assert job.run(0, restart=False, captures=True)["picks"] is None
    assert tuned_picks(one.hardware) is None


@pytest.mark.long
def test_attention_is_learned_on_an_unknown_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's folder gets a model of each op with enough problems, and the card names the device."""
    records = [m for m in measurements_in(BUNDLED) if m.problem.op == "flex_decoding"][:14]
    moved = [replace(m, hardware=L40S.hardware) for m in records]
    device = SweepDevice("cuda:0", L40S.hardware, records[0].environment)
    monkeypatch.setattr(WithBundled, "segment", sealed(tmp_path / "sealed", moved))
    monkeypatch.setattr(diode_tuning.job, "Commands", WithBundled)
    shapes = [str(SweepProblem.of_shape(m.problem.shape)) for m in moved]
    job = TuningJob([device], request(tmp_path, *shapes), DeviceFolder(tmp_path / "runs"), 16)
    assert foresee(job, restart=False)["other_models"] == ["flex_decoding"]
    report = job.run(0, restart=False, captures=True)
    (path,) = map(Path, report["other_models"])
    assert path == catalogue.user_models_dir() / ATTENTION_PURPOSE / "nvidia-l40s-flex-decoding.pt"
    card = read_card(card_path(path))
    assert [device.name for device in card.hardware] == ["NVIDIA L40S"]
    assert report["picks"]["picks"] == 14


def sealed(folder: Path, records: list[Measurement]) -> Path:
    """Return a segment with records."""
    with SpoolWriter(folder) as writer:
        for record in records:
            writer.append(record)
    (path,) = Spool(folder).sealed()
    return path


def test_whatever_a_sweep_times_is_measured() -> None:
    """Each op of a sweep either has a model of products or is pinned, so that no named problem is lost."""
    texts = *CALLS, *IMAGES, "flex_attention_backward:1x32x4096x128:8x4096/window1024"
    pinned = {parse_problem(text).op for text in texts}
    assert pinned == {name for name, op in OPS.items() if op.is_swept and not op.has_matrices}


def test_what_leaves_nothing_to_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dilated convolution and a signal have the library's kernel alone; a note says so, or an error."""
    alone = "convolution:32x64x56x56:64x3x3/dilation2", "convolution:32x64x1024:64x3"
    found = pool(tmp_path, *alone, *CALLS)
    assert [problem.op for problem in found.pinned.values()] == ["flex_attention", "flex_decoding"]
    assert "2 convolutions left out: with a dilation" in capsys.readouterr().err
    with pytest.raises(SettingsError, match=r"^the requested convolutions leave nothing to choose: .*; name others$"):
        pool(tmp_path, *alone)


def test_a_dry_run_says_what_a_budget_leaves_out(tmp_path: Path) -> None:
    """Of the named problems, which come before the products."""
    shapes = tuple(f"flex_decoding:8x32x1x128:8x{length}" for length in (2048, 4096, 8192, 16384))
    job = TuningJob([L40S], replace(request(tmp_path, *shapes), budget_s=4.0), DeviceFolder(tmp_path / "runs"), 16)
    assert "2 of 4 named convolutions and calls of attention fit into" in foresee(job, restart=False)["too_short"]
    longer = TuningJob([L40S], request(tmp_path, *shapes), DeviceFolder(tmp_path / "runs"), 16)
    assert foresee(longer, restart=False)["too_short"] is None
