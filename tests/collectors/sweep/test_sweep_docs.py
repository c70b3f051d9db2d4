"""What the pages on sweeps name is there, its commands do what it says, and its figures are those of the data."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from bundled_sets import all_measurements
from typer.main import get_command
from typer.testing import CliRunner

from diode_collectors.inductor import finals, timer
from diode_collectors.problems.families import families
from diode_collectors.problems.problem import DTYPE_NAMES
from diode_collectors.problems.shapesets import read_shapeset
from diode_collectors.spool.reading import measurements_in
from diode_collectors.sweep import devices as sweep_devices
from diode_collectors.sweep.agreement import Agreement, agreement_of
from diode_collectors.sweep.commands.collect import app
from diode_collectors.sweep.device_state import (
    CLOCK_UNSTEADY,
    FOREIGN_PROCESS,
    POWER_CAP_FALL,
    THROTTLED,
    UNSTEADY_SHARE,
)
from diode_collectors.sweep.devices import SweepDevice
from diode_collectors.sweep.lane import benchmark
from diode_collectors.sweep.lane.measuring import LAUNCH_NOT_HIDDEN
from diode_store.exchange.foreign.torch_diode import dataset_of
from diode_store.exchange.foreign.torch_diode_files import write_file
from diode_store.ops import swept_ops
from diode_store.records import Outcome, TimingMethod
from diode_store.timing.noise import sigmas_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from click.testing import Result
    from swept import Swept

    from diode_store.records import Measurement

PAGES = Path(__file__).parents[3] / "docs"
NAMES = ("sweep.md", "sweep-problems.md", "timing.md", "results/sweep-agreement.md")
PAGE = "\n".join((PAGES / name).read_text(encoding="utf-8") for name in NAMES)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
CORES = 16
FAILURES = {Outcome.COMPILE_ERROR, Outcome.OUT_OF_RESOURCES, Outcome.RUNTIME_ERROR, Outcome.WRONG_RESULT}
FLAGS = {THROTTLED, CLOCK_UNSTEADY, FOREIGN_PROCESS, LAUNCH_NOT_HIDDEN}


def blocks(kind: str) -> list[str]:
    """Return the page's blocks of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    """Return the arguments of each ``diode-collect`` on the page that times problems, or lists them."""
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    return [words[1:] for words in lines if words[:1] == ["diode-collect"] and words[1] != "agreement"]


def options() -> dict[str, set[str]]:
    """Return what each command of ``diode-collect`` takes, the main one by the empty name."""
    group: Any = get_command(app)
    named = {"": group, **group.commands}
    return {
        name: {
            flag
            for parameter in command.params
            for flag in (*parameter.opts, *parameter.secondary_opts)
            if flag.startswith("--")
        }
        for name, command in named.items()
    }


@pytest.fixture
def on_an_h200(bundled: Sequence[Measurement], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, on a machine that says it has one H200 and 16 cores."""
    device = SweepDevice("cuda:0", bundled[0].hardware, bundled[0].environment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_ARRAY_TASK_ID", "DIODE_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with (
        mock.patch.object(sweep_devices, "find_devices", return_value=(device,)),
        mock.patch.object(os, "sched_getaffinity", return_value=set(range(CORES))),
    ):
        yield tmp_path


def invoke(*arguments: str) -> Result:
    """Run ``diode-collect`` in this process."""
    return CliRunner().invoke(app, arguments)


def test_every_option_of_the_pages_is_one() -> None:
    """Each option that the pages name is one of ``diode-collect`` or its commands, or of the command beside it."""
    known = set().union(*options().values()) | {"--once"}  # of diode-ingest
    assert set(OPTION.findall(PAGE)) <= known


def test_the_dry_run_of_the_page(on_an_h200: Path) -> None:
    """It begins with the page's lines and ends with its estimate, and leaves nothing behind."""
    (shown,) = (block for block in blocks("text") if "choices  from" in block)
    first, ellipsis, last = shown.rpartition("...\n")
    assert ellipsis
    (arguments,) = (words for words in commands() if "--dry-run" in words)
    finished = invoke(*arguments)
    assert finished.exit_code == 0, finished.stderr
    assert finished.stdout.startswith(first)
    assert finished.stderr == last
    assert not (on_an_h200 / "spool").exists()


@pytest.mark.parametrize("arguments", commands(), ids=" ".join)
def test_every_command_of_the_page_is_understood(
    arguments: list[str], on_an_h200: Path, bundled: Sequence[Measurement]
) -> None:
    """Each lists problems, or families."""
    if "--against" in arguments:
        write_file(on_an_h200 / "train.msgpack", dataset_of(bundled[:1])[0])
    finished = invoke(*arguments, *(() if "--dry-run" in arguments else ("--dry-run",)), "--json")
    assert finished.exit_code == 0, finished.output
    told = json.loads(finished.stdout)
    if arguments == ["--families"]:
        assert {row["family"] for row in told} == {family.name for family in families()}
    else:
        assert told["problems"]


def test_the_shape_sets_of_the_page(tmp_path: Path) -> None:
    """The text, the CSV and the JSON are read as the page says."""
    (text,) = (block for block in blocks("text") if block.startswith("#"))
    found = {}
    for kind, content in (("txt", text), ("csv", *blocks("csv")), ("json", *blocks("json"))):
        path = tmp_path / f"set.{kind}"
        path.write_text(content, encoding="utf-8")
        found[kind] = [(str(problem), problem.name) for problem in read_shapeset(path)]
    assert found == {
        "txt": [("mm:512x768x1024/nt/bf16", "encoder/qkv"), ("bmm:128x128x64:16/nn/bf16", "set/line 3")],
        "csv": [("mm:512x768x1024/nt/fp16", "set/line 2")],
        "json": [("mm:512x768x1024/nn/bf16", "set/mm entry 1")],
    }


def test_the_words_of_the_page() -> None:
    """It names every op, dtype, flag and failure, and the limits that the code has."""
    words = set(re.findall(r"`([\w-]+)`", PAGE))
    assert {*swept_ops(), *DTYPE_NAMES, *FLAGS} <= words
    assert {outcome.value for outcome in FAILURES} <= words
    assert f"more than {POWER_CAP_FALL:.0%} down" in PAGE
    assert f"fell by more than {UNSTEADY_SHARE:.0%}" in PAGE
    assert f"{benchmark.FEWEST_RUNS} to {benchmark.MOST_RUNS} runs" in PAGE
    assert (benchmark.FIRST_LOOK_RUNS, benchmark.HOPELESS_FACTOR, benchmark.ESTIMATE_FACTOR) == (3, 10.0, 3.0)
    assert (benchmark.FINALIST_FACTOR, benchmark.MOST_FINALISTS) == (1.1, 10)
    assert f"{finals.FEWEST_ROUNDS} to {finals.MOST_ROUNDS} rounds" in PAGE
    assert f"up to {finals.MOST_ROUNDS_OF_LONG} rounds" in PAGE
    assert (timer.GRAPH_BELOW_US, finals.LONG_US) == (50.0, 1000.0)


def twice(name: str, regime: str | None = None) -> Agreement:
    """Return how two sweeps agree, of all problems or of those that were timed in ``regime``."""
    segments = (PAGES.parent / "tests" / "data" / f"h200-2026-11-{name}-{i}.seg" for i in (1, 2))
    sweeps = (list(measurements_in(segment)) for segment in segments)
    return agreement_of(*([m for m in sweep if regime in (None, m.timing_method.regime)] for sweep in sweeps))


def test_how_well_two_sweeps_agree() -> None:
    """The page's figures are what the two sweeps come to, in either way of timing."""
    columns: dict[str, list[str]] = {"best": [], "each": [], "same": []}
    for name in ("twice-deployed", "twice"):
        agreed = twice(name)
        count, best = len(agreed.problems), agreed.best
        assert f"Two sweeps of {count} problems" in PAGE
        columns["best"].append(f"median {best.median:.1%}, p95 {best.p95:.1%}, largest {best.maximum:.1%}")
        for share, told in shares(agreed).items():
            columns[share].append(told)
    assert f"| best time of a problem, size of the log ratio | {' | '.join(columns['best'])} |" in PAGE
    assert f"| each winner inside the other's tie set | {' | '.join(columns['each'])} |" in PAGE
    assert f"| the same winner | {' | '.join(columns['same'])} |" in PAGE


def test_the_scatter_in_each_regime() -> None:
    """The page's figures, and the scatter that the views assume, are what pairs of one regime come to."""
    sweeps = {"graph": "twice-deployed", "read_flush": "twice-deployed", "write_flush": "twice"}
    shown: dict[str, list[str]] = {}
    for regime, name in sweeps.items():
        agreed = twice(name, None if name == "twice" else regime)  # those of then did not say it
        usual = sigmas_of(TimingMethod(launch_hidden=True, regime=regime))
        otherwise = sigmas_of(TimingMethod(launch_hidden=True, regime="write_flush"))
        for band, sigma, of_writing in zip(agreed.bands, usual, otherwise, strict=True):
            found = band.log_ratio_std
            assert sigma == (of_writing if found is None else round(found, 3))
            shown.setdefault(band.band, []).append("" if found is None else f" {found:.1%}")
    for band, cells in shown.items():
        assert f"| {band} |{' |'.join(cells)} | " in PAGE


def shares(agreed: Agreement) -> dict[str, str]:
    """Return of how many problems each winner is in the other's tie set, and is the same."""
    count = len(agreed.problems)
    both = sum(problem.first_in_second and problem.second_in_first for problem in agreed.problems)
    return {"each": f"{both} of {count}", "same": f"{round(agreed.same_winner_share * count)} of {count}"}


def test_the_data_that_ship() -> None:
    """The README and the page on ingesting count them rightly."""
    bundled = all_measurements()
    problems = {m.problem.key for m in bundled}
    exhaustive = {m.problem.key for m in bundled if (m.search_space or "").startswith("EXHAUSTIVE")}
    timings = sum(len(m.timings) for m in bundled)
    ingest = " ".join((PAGES / "ingest.md").read_text(encoding="utf-8").split())
    counted = f"{len(bundled):,} measurements of {len(problems):,} problems, with {timings:,} timings"
    assert f"{counted}, on NVIDIA H200 and H100; {len(exhaustive)} of the problems are exhaustive" in ingest
    assert f"{timings:,} bundled timings" in (PAGES.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.xdist_group("sweeps")
def test_the_sweep_without_a_gpu(swept: Swept) -> None:
    """The page's example measures three problems on a CPU and writes them to its file."""
    assert swept.finished.stderr.splitlines()[-1].startswith("3 of 3 problems measured, 6 timings in ")
    rows = [json.loads(line) for line in swept.output.read_text(encoding="utf-8").splitlines()]
    assert sorted((row["op"], row["layout"]) for row in rows) == [("addmm", "nt"), ("bmm", "nt"), ("mm", "nn")]
