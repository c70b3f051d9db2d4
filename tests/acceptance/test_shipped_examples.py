"""The examples run as they are, without a GPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diode_trainer.artifact import load
from diode_trainer.card import card_path
from diode_trainer.catalogue import shipped_models

CHECKOUT = Path(__file__).resolve().parents[2]
EXAMPLES = CHECKOUT / "examples"
SMALL = {
    "NUM_SHAPES": "10",
    "NUM_VALIDATION_SHAPES": "2",
    "FOLDS": "0",
    "NUM_EPOCHS": "2",
    "COLLECT_OPTIONS": "--device cpu --max-size 96 --op mm",
}


def run(folder: Path, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run an example in ``folder``, with the commands of this installation."""
    program = [sys.executable] if name.endswith(".py") else ["bash"]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return subprocess.run(
        [*program, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def trained_on_bundled(tmp_path: Path) -> Path:
    """Return a folder as ``matmul_workflow.sh`` leaves it, of measurements on a GPU and the shipped model."""
    model = next(shipped.path for shipped in shipped_models())
    for source in (model, card_path(model)):
        shutil.copy(source, tmp_path / f"matmul_model{source.suffix}")
    lines = (CHECKOUT / "tests" / "data" / "h200_excerpt.jsonl").read_text(encoding="utf-8").splitlines()
    named = [json.dumps({**json.loads(line), "hardware": "NVIDIA H200"}) for line in lines]
    (tmp_path / "validation.jsonl").write_text("\n".join(named) + "\n")
    return tmp_path


def test_every_example_is_listed() -> None:
    """The page beside them has a line for each, and each is run here or by `make quickstart`."""
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    here = Path(__file__).read_text(encoding="utf-8")
    scripts = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"})
    assert [name for name in scripts if f"| `{name}` |" not in page] == []
    assert [name for name in scripts if f', "{name}"' not in here.partition("def test_every_example")[2]] == [
        "quickstart.py"
    ]


@pytest.mark.parametrize("name", ["matmul_workflow.sh", "max_autotune_validation.sh"])
def test_workflows_can_be_run_as_they_are(name: str) -> None:
    """They are executable, and correct for a shell."""
    assert os.access(EXAMPLES / name, os.X_OK)
    if (shellcheck := shutil.which("shellcheck")) is not None:
        subprocess.run([shellcheck, str(EXAMPLES / name)], check=True)


@pytest.mark.long
def test_the_announced_workflow(tmp_path: Path) -> None:
    """Collect, train, collect again and validate, with kernels that are compiled and timed on this CPU."""
    finished = run(tmp_path, "matmul_workflow.sh", **SMALL)
    assert finished.returncode == 0, finished.stderr
    steps = [line for line in finished.stdout.splitlines() if line.startswith("== ")]
    assert steps == [
        "== Collect the training set",
        "== Train a model",
        "== Collect a validation set",
        "== Validate the model",
    ]
    assert load(tmp_path / "matmul_workflow" / "matmul_model.pt").card.ops == ("mm",)


@pytest.mark.long
def test_steps_of_the_workflow_can_be_left_out(trained_on_bundled: Path) -> None:
    """With the files of the others there, the last step alone is run."""
    skipped = {"SKIP_COLLECTION": "1", "SKIP_TRAINING": "1", "SKIP_VALIDATION": "1"}
    finished = run(trained_on_bundled, "matmul_workflow.sh", ".", **skipped)
    assert finished.returncode == 0, finished.stderr
    assert [line for line in finished.stdout.splitlines() if line.startswith("== ")] == ["== Validate the model"]
    assert "regret@1" in finished.stdout


@pytest.mark.long
def test_comparing_with_max_autotune(trained_on_bundled: Path) -> None:
    """From a data set that a GPU timed, a solution is made, and the model's choices are compared with it."""
    finished = run(trained_on_bundled, "max_autotune_validation.sh", ".", HARDWARE="h200")
    assert finished.returncode == 0, finished.stderr
    assert json.loads((trained_on_bundled / "model_performance_analysis_by_op.json").read_text(encoding="utf-8"))


def test_comparing_before_there_is_anything(tmp_path: Path) -> None:
    """One line says what comes first."""
    finished = run(tmp_path, "max_autotune_validation.sh")
    missing, remedy = "matmul_workflow/validation.jsonl", "run examples/matmul_workflow.sh matmul_workflow first"
    assert (finished.returncode, finished.stderr) == (1, f"error: {missing}: no such file; {remedy}\n")


@pytest.mark.long
def test_collecting_in_your_own_process(tmp_path: Path) -> None:
    """The collector hears of real compiles."""
    finished = run(tmp_path, "collect_matmul_dataset.py", "--spool", str(tmp_path / "spool"))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines()[-1] == "saved matmul_dataset.json"
    assert list((tmp_path / "spool").glob("*.seg"))


@pytest.mark.long
def test_training_in_python(tmp_path: Path) -> None:
    """A model is trained, judged and saved."""
    finished = run(tmp_path, "train_and_evaluate.py", "--problems", "30", "--epochs", "5")
    assert finished.returncode == 0, finished.stderr
    assert [line.partition(":")[0] for line in finished.stdout.splitlines()[2:4]] == [
        "the model",
        "the vendor's kernels",
    ]
    assert load(tmp_path / "matmul_model.pt").card.training == {"epochs": 5, "seed": 42}


@pytest.mark.long
def test_too_few_problems_to_train_on(tmp_path: Path) -> None:
    """The example says so in one line, as the commands do."""
    finished = run(tmp_path, "train_and_evaluate.py", "--problems", "8")
    assert finished.returncode == 1
    assert re.match(r"error: [1-8] problems are too few to learn from, 10 needed;", finished.stderr)
    assert finished.stderr.count("\n") == 1


@pytest.mark.long
def test_compiling_with_the_hook(tmp_path: Path) -> None:
    """The shipped model ranks what a GPU would be offered while a real module is compiled for this CPU."""
    finished = run(tmp_path, "compile_with_hook.py")
    assert finished.returncode == 0, finished.stderr
    assert "No GPU here: what the hook would choose on NVIDIA H200" in finished.stdout
    assert "model_selections 2" in " ".join(finished.stdout.split())
