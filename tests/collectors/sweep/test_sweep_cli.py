"""``diode-collect``: real problems on this CPU, and what it says when asked for something else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from spool_reading import spooled

from diode_collectors.problems.problem import parse_problem
from diode_collectors.sweep.devices import check_can_be_timed
from diode_store.errors import HardwareError
from diode_store.exchange.foreign.torch_diode_files import read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset
from diode_store.records import Outcome, Source

if TYPE_CHECKING:
    from pathlib import Path

    from swept import Swept

    from conftest import RunCommand

pytestmark = pytest.mark.usefixtures("_devices_asked_once")

CPU = ("--device", "cpu")


class ListProblems(Protocol):
    """Lists the problems of a dry run."""

    def __call__(self, *arguments: object) -> dict[str, Any]:
        """Return what ``--json`` prints."""


@pytest.fixture
def listed(collect: RunCommand) -> ListProblems:
    """Return a function that lists what a sweep of this CPU would time."""

    def run(*arguments: object) -> dict[str, Any]:
        finished = collect(*map(str, arguments), *CPU, "--dry-run", "--json")
        assert finished.code == 0, finished.err
        told: dict[str, Any] = json.loads(finished.out)
        return told

    return run


@pytest.mark.xdist_group("sweeps")
def test_problems_are_timed_once_and_skipped_then(
    swept: Swept, collect: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATen's and Inductor's C++ kernels land in the spool; the same command again has nothing left to do."""
    note, *_, summary = swept.finished.stderr.splitlines()  # a slow machine tells its progress in between
    assert note.startswith("timing on ")
    assert summary.startswith("3 of 3 problems measured, 6 timings in ")
    assert summary.endswith("(0 left nothing to time, 0 failed); written to cpu.jsonl")
    assert [line.split()[-7] for line in swept.finished.stdout.splitlines()[1:4]] == ["1", "1", "1"]
    measurements = sorted(spooled(swept.spool), key=lambda m: m.problem.op)
    assert [(m.problem.op, m.problem.shape.b) for m in measurements] == [("addmm", 1), ("bmm", 3), ("mm", 1)]
    assert {(m.source, m.search_space, m.problem.shape.dtype) for m in measurements} == {
        (Source.SWEEP, "DEFAULT", "float32")
    }
    assert len({m.sweep_id for m in measurements}) == 1
    for measurement in measurements:
        assert {timing.config.template.partition("::")[0] for timing in measurement.timings} == {"aten", "cpp"}
        # A tenth of a microsecond to a tenth of a second: no other unit fits.
        timed = [timing for timing in measurement.timings if timing.outcome is Outcome.OK]
        assert all(0.1 < (timing.runtime_us or 0) < 1e5 for timing in timed)
    monkeypatch.chdir(swept.folder)
    for timing in ("deployed", "write-flush"):  # which mean the same on a CPU
        again = collect(*swept.arguments, "--timing", timing, "--dry-run", "--json")
        told = json.loads(again.out)
        assert (told["problems"], told["skipped"]) == ([], 3)


@pytest.mark.long
@pytest.mark.xdist_group("sweeps")
def test_data_sets_and_sets_disjoint_from_them(swept: Swept, collect: RunCommand, tmp_path: Path) -> None:
    """A validation set shares no problem with another, in any layout; it is a file of upstream's layout."""
    validation = tmp_path / "validation.json"
    shapes = ("--shape", "bmm:16x48x32:3/nn", "--shape", "bmm:8x8x8:2")
    finished = collect("create-validation", "--against", swept.output, *shapes, *CPU, "--output", validation)
    assert finished.code == 0, finished.err
    assert "disjoint from 3 problems\n" in finished.err
    # Nothing of it is a Triton kernel, which is all that this layout holds.
    assert f"{tmp_path / 'validation.json.spool'} has all of it" in finished.err
    assert isinstance(read_file(validation, Dataset), Dataset)
    [measurement] = spooled(tmp_path / "validation.json.spool")
    assert (measurement.problem.shape.m, measurement.problem.shape.b) == (8, 2)


def test_dry_run_lists_problems_and_touches_nothing(tmp_path: Path, listed: ListProblems) -> None:
    """Given and drawn problems are listed once each, in order, with choices and an estimate."""
    shapes = ("--shape", "mm:64x128x256", "--shape", "mm:64x128x256", "--num-shapes", "2", "--seed", "3")
    told = listed(*shapes, "--dtype", "fp32", "--spool", tmp_path / "spool")
    first = {"op": "mm", "dtype": "fp32", "layout": "nn", "b": 1, "m": 64, "n": 128, "k": 256, "choices": 2}
    assert told["problems"][0] == {**first, "from": "typed"}
    assert [row["from"] for row in told["problems"]] == ["typed", "drawn/3", "drawn/3"]
    assert (told["choices"], told["skipped"], told["devices"]) == (6, 0, ["cpu"])
    assert told["estimate_s"] > 0
    assert not (tmp_path / "spool").exists()


def test_options_reach_the_problems(tmp_path: Path, listed: ListProblems, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comma lists and repeated options, ranges, restrictions and shards each have their effect."""
    spool = ("--spool", tmp_path / "spool")
    drawn = ("--num-shapes", "12", "--op", "mm,bmm", "--dtype", "fp32,tf32", "--layout", "nn", "--layout", "nt")
    rows = listed(*drawn, "--min-size", "32", "--max-size", "256", "--power-of-two", *spool)["problems"]
    assert {(row["op"], row["dtype"], row["layout"]) for row in rows} == {
        (op, dtype, layout) for op in ("mm", "bmm") for dtype in ("fp32", "tf32") for layout in ("nn", "nt")
    }
    assert {size for row in rows for size in (row["m"], row["n"], row["k"])} == {32, 64, 128, 256}
    normal = ("--num-shapes", "9", "--log-normal", "--log-normal-m-mean", "5", "--log-normal-m-std", "0")
    assert {row["m"] for row in listed(*normal, *spool)["problems"]} == {148 // 8 * 8 + 8}
    shards = [listed("--family", "vit-b16", "--shard", f"{i}/3", *spool)["problems"] for i in range(3)]
    whole = listed("--family", "vit-b16", *spool)["problems"]
    assert sorted(map(str, whole)) == sorted(str(row) for part in shards for row in part)
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    assert listed("--family", "vit-b16", *spool)["problems"] == shards[1]


def test_families_are_listed_with_their_sources(collect: RunCommand) -> None:
    """Anyone can look them up."""
    finished = collect("--families", "--json")
    rows = {row["family"]: row for row in json.loads(finished.out)}
    assert rows["llama3-8b"]["source"] == "https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json"
    assert rows["llama3-8b"]["problems"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "mm:1x2"), "'mm:1x2' is not a shape"),
        (("--shape", "conv:1x2x3"), "unknown op 'conv'"),
        (("--shape", "mm:8x8x8", "--dtype", "int8"), "unknown dtype 'int8'"),
        (("--shape", "mm:8x8x8", "--search-space", "HUGE"), "unknown search space 'HUGE'; expected DEFAULT"),
        (("--shape", "mm:8x8x8", "--search-space", "GUIDED:8"), "--search-space GUIDED:N and --guide FILE go together"),
        (("--shape", "mm:8x8x8", "--guide", "g.json"), "--search-space GUIDED:N and --guide FILE go together"),
        (("--shape", "mm:8x8x8", "--search-space", "GUIDED:8", "--guide", "g.json"), "g.json: cannot read the guide"),
        (("--shape", "mm:8x8x8", "--kernels", "k"), "--kernels keeps kernels that problems share; add --share-kernels"),
        (("--shape", "mm:8x8x8", "--search-mode", "fast"), "unknown --search-mode 'fast'; expected max-autotune"),
        (
            ("--shape", "mm:8x8x8", "--time-limit", "soon"),
            "--time-limit 'soon' is not a duration; write 90, 90s, 30m or 2h",
        ),
        (("--shape", "mm:8x8x8", "--shard", "3/3"), "there is no shard 3 of 3"),
        (("--shape", "mm:8x8x8", "--output", "x.csv"), "--output x.csv: its suffix sets the format; expected .json"),
        (("--shape", "mm:8x8x8", "--output", "x.json", "--spool", "x"), "drop --spool, or --output"),
        (("--shape", "mm:8x8x8", "--device", ""), "'--device': it is empty"),
        (("--shape", "mm:8x8x8", "--shard", ""), "'--shard': it is empty"),
        (("--shape", "mm:8x8x8", "--dtype", ""), "'--dtype': it is empty"),
        (("--shape", "mm:8x8x8", "--op", "mm", "--op", ","), "unknown op ''; known ops: mm"),
        (("--shape", "mm:8x8x8", "--layout", " "), "'--layout': it is empty"),
        (("--shape", "mm:8x8x8", "--family", ""), "'--family': it is empty"),
        (("--shape", "mm:8x8x8", "--database", ""), "'--database': it is empty"),
        (("--num-shapes", "1", "--seed", str(2**63)), "9223372036854775808 does not fit into 64 bits"),
        (("create-validation", "--against", "x", "--seed", str(-(2**63) - 1)), "does not fit into 64 bits"),
        (("create-validation", "--against", ""), "'--against': it is empty"),
        (("--seed", "1"), "give problems with --shape, --shapeset, --family or --num-shapes"),
        (("--family", "llama3-8"), "did you mean llama3-8b?"),
        (("--shapeset", "/missing.json"), "/missing.json: cannot read the shape set: No such file or directory"),
        (("--num-shapes", "1", "--min-size", "9", "--max-size", "8"), "--min-size 9 is more than --max-size 8"),
        (("--num-shapes", "1", "--log-normal", "--power-of-two"), "--power-of-two contradicts --log-normal"),
        (("--num-shapes", "1", "--log-normal-m-std", "2"), "--log-normal-m-std describes log-normal sizes; give --log"),
        (("--shape", "mm:8x8x8", "--device", "gpu"), "unknown device 'gpu'; expected cuda, cuda:N or cpu"),
        (("--shape", "mm:8x8x8", "--hardware", "h200"), "for a device that is not here, so it needs --dry-run"),
        (
            ("--num-shapes", "1", "--hardware", "h200", "--device", "cpu", "--dry-run"),
            "--hardware is a device elsewhere",
        ),
        (("--shape", "mm:8x8x8", "create-validation"), "put --shape behind create-validation"),
        (("create-validation",), "name what it must be disjoint from, with --against or --database"),
        (("create-validation", "--against", "/missing"), "--against /missing: there is no such file or folder"),
        (("--shape", "mm:8x8x8", "--database", "postgresql://u:secret@h/d"), "password"),
    ],
)
def test_bad_usage_ends_with_2(arguments: tuple[str, ...], message: str, collect: RunCommand) -> None:
    """What was typed wrong is named."""
    finished = collect(*arguments)
    assert finished.code == 2, finished.err
    assert message in " ".join(finished.err.split())


def test_nobody_s_file_is_overwritten(tmp_path: Path, collect: RunCommand) -> None:
    """A data set without the spool it came from is somebody else's; a missing folder is named."""
    (tmp_path / "set.json").write_text("{}")
    for output, message in (
        ("set.json", f"error: --output {tmp_path / 'set.json'} exists, and no set.json.spool that it came from"),
        ("missing/set.json", f"error: --output {tmp_path / 'missing' / 'set.json'}: there is no folder"),
    ):
        finished = collect("--shape", "mm:8x8x8", *CPU, "--output", tmp_path / output)
        assert (finished.code, finished.out) == (1, "")
        assert finished.err.startswith(message)
    assert (tmp_path / "set.json").read_text() == "{}"


def test_a_spool_that_cannot_be_made_ends_it_first(tmp_path: Path, collect: RunCommand) -> None:
    """One line that names it."""
    spool = tmp_path / "file"
    spool.touch()
    finished = collect("--shape", "mm:8x8x8", *CPU, "--spool", spool)
    assert finished.code == 1
    assert finished.err.splitlines()[-1].startswith(f"error: {spool}: cannot ")


def test_what_onednn_takes_over_is_refused_before_it_compiles(tmp_path: Path, collect: RunCommand) -> None:
    """On a CPU, mm in bf16 leaves nothing to time; that is said at once, with what does."""
    spool = tmp_path / "spool"
    finished = collect("--shape", "mm:64x64x64", "--dtype", "bf16", *CPU, "--spool", spool)
    assert (finished.code, finished.out) == (1, "")
    [line] = finished.err.splitlines()
    assert line.startswith("error: on a CPU oneDNN takes mm and addmm in bfloat16 over")
    assert "--dtype fp32" in line
    assert not spool.exists()


@pytest.mark.parametrize("text", ["mm:8x8x8/fp32", "bmm:8x8x8:2/bf16"])
def test_what_can_be_timed_is_not_refused(text: str) -> None:
    """One such problem is enough; on a GPU there is none that could not be."""
    refused = parse_problem("mm:8x8x8")
    check_can_be_timed([refused, parse_problem(text)], on_cpu=True)
    check_can_be_timed([refused], on_cpu=False)
    with pytest.raises(HardwareError, match="a baddbmm has one kernel only"):
        check_can_be_timed([parse_problem("baddbmm:8x8x8:2/fp32")], on_cpu=True)


def test_help_says_how_it_times(collect: RunCommand) -> None:
    """Whoever trains on the records must know what the times are."""
    text = " ".join(collect("--help").out.split())
    assert "hides the launch, flushes the L2 cache and takes the median" in text
    assert "Example: diode-collect --family" in text
    assert "--log-normal-k-std" in text
    text = " ".join(collect("create-validation", "--help").out.split())
    assert "that another set does not have" in text
    assert "--against" in text
