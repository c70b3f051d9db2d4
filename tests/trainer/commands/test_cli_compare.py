"""`diode compare`, from a warehouse to the file of all figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from upstream_v1 import checkpoint

if TYPE_CHECKING:
    from conftest import RunCommand

REPORT = "model_performance_analysis_by_op.json"


@pytest.fixture
def solution(filled: str, diode: RunCommand, tmp_path: Path) -> Path:
    """Return what max-autotune would choose among everything that was timed on the 24 problems."""
    path = tmp_path / "solution.json"
    options = ("--format", "max-autotune-solution", "--search-space", "EXHAUSTIVE")
    assert diode("export", *options, "-o", str(path)).code == 0
    return path


@pytest.fixture
def command(trained: Path, solution: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, ...]:
    """Return the command up to its data; it runs in a folder of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ("compare", "--model", "quick", "--max-autotune-solution", str(solution))


def test_table_and_file(diode: RunCommand, command: tuple[str, ...]) -> None:
    """A row for each op and number of tried choices; all figures go to the file that upstream wrote."""
    for _ in range(2):  # a second run replaces the file
        result = diode(*command, "--hardware", "h200")
        assert result.code == 0, result.err
    header, *rows, last = result.out.splitlines()
    assert header.split()[:6] == ["op", "tried", "problems", "better", "equal", "worse"]
    assert [row.split()[:3] for row in rows] == [["mm", n, "24"] for n in ("1", "5", "10")]
    assert last == f"all figures: {REPORT}"
    assert "note: it was trained on 24 of these 24 problems, so the figures flatter it" in result.err
    written = json.loads(Path(REPORT).read_text())
    assert written.keys() == {"per_op", "overall", "metadata"}
    top = written["per_op"]["mm"]["top_1"]
    assert rows[0].split()[6] == f"{top['overall_metrics']['geomean_speedup_ratio']:.4f}"
    assert top["performance_breakdown"]["model_better"]["count"] == 0  # nothing is better than the best of all
    assert written["metadata"]["validation_dataset_path"] == "the warehouse"
    assert written["metadata"]["ops_present"] == ["mm"]


def test_json(diode: RunCommand, command: tuple[str, ...], solution: Path, tmp_path: Path) -> None:
    """Scripts get the same object; no file is written unless one is named."""
    result = diode(*command, "--hardware", "h200", "--no-vendor", "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert (shown["metadata"]["vendor_kernels_count"], shown["overall"]["top_1"]["shapes_analyzed"]) == (False, 24)
    assert shown["metadata"]["max_autotune_solution_path"] == str(solution)
    assert not Path(REPORT).exists()
    assert diode(*command, "--hardware", "h200", "--json", "-o", "mine.json").code == 0
    assert json.loads(Path("mine.json").read_text())["overall"].keys() == shown["overall"].keys()


def test_data_in_files(diode: RunCommand, command: tuple[str, ...], tmp_path: Path) -> None:
    """The announcement's files: a data set of upstream's, and a problem with its tile."""
    dataset, solution = tmp_path / "validation.msgpack", tmp_path / "tutorial.json"
    assert diode("export", "-o", str(dataset)).code == 0
    exported = json.loads(Path(command[-1]).read_text())["configs"]
    said = [{name: c[name] for name in ("M", "N", "K", "block_m", "block_n", "block_k")} for c in exported]
    solution.write_text(json.dumps({"name": "tutorial_max_autotune", "configs": said[:5]}))
    result = diode(*command[:-1], str(solution), "--dataset", str(dataset), "--json")
    assert result.code == 0, result.err
    shown = json.loads(result.out)
    assert shown["overall"]["top_1"]["shapes_analyzed"] == 5
    assert shown["metadata"]["problems_not_in_solution"] == 19
    assert shown["metadata"]["validation_dataset_path"] == str(dataset)


def test_left_out_is_told(diode: RunCommand, command: tuple[str, ...]) -> None:
    """Problems without a choice of max-autotune are counted below the table."""
    exported = json.loads(Path(command[-1]).read_text())["configs"]
    Path("few.json").write_text(json.dumps({"configs": exported[:20]}))
    result = diode(*command[:-1], "few.json", "--hardware", "h200")
    assert result.code == 0, result.err
    assert "left out 4 problems: no kernel of the solution was timed on them\n" in result.err


def test_upstreams_model(diode: RunCommand, command: tuple[str, ...]) -> None:
    """It is compared where it can choose, and what it never chooses is told."""
    torch.save(checkpoint(), "v1_model.pt")
    result = diode("compare", "--model", "v1_model.pt", *command[3:], "--hardware", "h200", "--no-vendor")
    assert result.code == 0, result.err
    assert "note: v1_model ranks triton::mm on mm only" in result.err


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "few.json: it is not JSON"),
        ('{"mm": {"config": []}}', "few.json: it names no config; `diode export --format max-autotune-solution`"),
        (
            '{"configs": [{"M": 1, "N": 1, "K": 1, "block_m": 1, "block_n": 1, "block_k": 1}]}',
            "on none of 24 problems both have a choice: on 24 no kernel of the solution was timed",
        ),
    ],
)
def test_bad_solution(diode: RunCommand, command: tuple[str, ...], content: str, expected: str) -> None:
    """A solution that is none, or does not fit the data, is one line and exit status 1."""
    Path("few.json").write_text(content)
    result = diode(*command[:-1], "few.json", "--hardware", "h200")
    assert (result.code, result.out) == (1, "")
    assert expected in result.err.splitlines()[-1]
    assert not Path(REPORT).exists()


def test_unwritable_file(diode: RunCommand, command: tuple[str, ...]) -> None:
    """A file that cannot be written is one line."""
    result = diode(*command, "--hardware", "h200", "-o", "none/report.json")
    assert (result.code, result.out) == (1, "")
    assert "none/report.json cannot be written" in result.err


def test_another_file_is_not_replaced(diode: RunCommand, command: tuple[str, ...], solution: Path) -> None:
    """Figures replace earlier ones, and no file of another kind, such as the solution."""
    before = solution.read_bytes()
    result = diode(*command, "--hardware", "h200", "--output", str(solution))
    assert (result.code, result.err) == (
        1,
        f"error: {solution} exists and holds no comparison, so it was not replaced; give another --output\n",
    )
    assert solution.read_bytes() == before


def test_bad_usage(diode: RunCommand) -> None:
    """A model, a solution and data are needed."""
    assert diode("compare", "--model", "m", "--hardware", "h200").code == 2
    assert diode("compare", "--model", "m", "--max-autotune-solution", "s.json").code == 2
