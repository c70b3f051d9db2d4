"""`diode tune`: from a device that no model knows to one that picks its kernels, with real timings of this CPU."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from lanes import long

PROGRAMS = Path(sys.executable).parent
USE = """
import json, torch, torch_diode
sizes = (64, 96), (96, 80)
settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,CPP"}
torch.compile(torch.mm, options=settings)(*(torch.randn(size) for size in sizes))
print(json.dumps(torch_diode.get_stats()))
"""
SHAPES = [f"mm:{m}x{n}x{k}/nn/fp32" for m in (32, 64, 128) for n, k in ((32, 64), (80, 96), (128, 128), (96, 40))]


class User:
    """Somebody with a data folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data" / "torch-diode"
        self.environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
        self.shapes = folder / "shapes.txt"
        self.shapes.write_text("\n".join(SHAPES))

    def tune(self, *options: str) -> tuple[str, ...]:
        """Return the command that tunes this CPU for a few small products."""
        what = "--device", "cpu", "--shapeset", str(self.shapes), "--budget", "10m", "--folds", "0"
        return str(PROGRAMS / "diode"), "tune", *what, *options

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=900)

    def done(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command that has to succeed."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done

    def runs(self) -> list[Path]:
        """Return the folders of the runs that were begun."""
        return sorted(self.data.glob("tune/*/run-*"))

    def plan(self) -> str | None:
        """Return the problems of the first round, once they are chosen."""
        files = list(self.data.glob("tune/*/run-0001/round-1.txt"))
        return files[0].read_text() if files else None

    def models(self) -> list[str]:
        """Return the names of the models, without suffixes."""
        return [path.stem for path in self.data.glob("models/**/*.pt")]

    def measured(self) -> Counter[int]:
        """Return how often each problem was measured."""
        with sqlite3.connect(self.data / "warehouse.db") as connection:
            return Counter(number for (number,) in connection.execute("SELECT problem_id FROM measurements"))


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Return somebody who has nothing yet."""
    return User(tmp_path)


@pytest.mark.long
def test_from_nothing_to_picked_kernels(user: User) -> None:
    """One command: then the next process uses the model, which nobody named, and says nothing about it."""
    before = user.done(str(PROGRAMS / "python"), "-c", USE)
    assert "torch-diode abstains: it finds no GPU" in before.stderr
    assert json.loads(before.stdout)["model_selections"] == 0
    foreseen = json.loads(user.done(*user.tune("--dry-run", "--json")).stdout)[0]
    assert (foreseen["targets"], foreseen["problems"], foreseen["goes_on_with"]) == (12, 12, None)
    assert user.runs() == []
    tuned = user.done(*user.tune())
    assert "round 1 of 1: up to 12 problems in 600 s" in tuned.stderr
    assert tuned.stdout.splitlines()[-2:] == [
        f"hook   asks it first on {foreseen['hardware']}",
        "use    import torch_diode in a new process; no further setup is needed",
    ]
    assert user.models() == [Path(foreseen["model"]).stem]
    after = user.done(str(PROGRAMS / "python"), "-c", USE)
    assert after.stderr == ""
    assert json.loads(after.stdout)["model_selections"] == 1

    packed = str(user.shapes.with_name("share"))
    exported = str(user.shapes.with_name("timings.jsonl"))
    user.done(str(PROGRAMS / "diode"), "export", "--format", "jsonl", "-o", exported)
    user.done(str(PROGRAMS / "diode-ingest"), "pack", "--anonymous", "--licence", "Apache-2.0", "-o", packed, exported)
    (segment,) = Path(packed).iterdir()
    imported = user.done(str(PROGRAMS / "diode"), "import", str(segment))
    assert "nothing new: all 12 measurements were there already" in imported.stdout + imported.stderr

    again = json.loads(user.done(*user.tune("--json")).stdout)[0]
    assert (again["rounds"][0]["problems"], again["rounds"][0]["measured"]) == (0, 0)
    assert again["previous"] is not None
    assert Path(again["previous"]).exists()
    assert user.measured() == Counter(range(1, 13))


@pytest.mark.long
def test_killed_and_run_again(user: User) -> None:
    """Killed at random moments it goes on with the same plan, measures each problem once, and ends with one model."""
    draws = random.Random()  # noqa: S311 - not cryptography
    plans = set()
    for _ in range(4):
        process = subprocess.Popen(user.tune(), env=user.environment, stderr=subprocess.DEVNULL)
        time.sleep(draws.uniform(2, 25))
        process.kill()
        process.wait()
        plans.add(user.plan())
        if process.returncode == 0:
            break  # it was done before; run again, it would add to that
    else:
        user.done(*user.tune())
    plans.add(user.plan())
    assert len(plans - {None}) == 1
    assert [path.name for path in user.runs()] == ["run-0001"]
    assert user.measured() == Counter(range(1, 13))
    assert len(user.models()) == 1


@pytest.mark.long
def test_interrupted(user: User) -> None:
    """Ctrl-C ends it with what it has; other options do not go on with it, and --restart plans anew."""
    process = subprocess.Popen(user.tune(), env=user.environment, stderr=subprocess.PIPE, text=True)
    while user.plan() is None:
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, "Traceback" in said) == (130, False)
    assert said.endswith("interrupted; run the same command to continue\n")
    other = user.run(*user.tune("--from-scratch"))
    assert other.returncode == 1
    told = " ".join(other.stderr.split())
    assert "the interrupted run has another --from-scratch; repeat its options to continue, or give --restart" in told
    user.done(*user.tune("--from-scratch", "--restart"))
    assert list(user.data.glob("tune/*/run-*/spool/*.seg")) == []
    assert [path.name for path in user.runs()] == ["run-0001", "run-0002"]
    assert user.measured() == Counter(range(1, 13))


@long
def test_too_few_problems(user: User) -> None:
    """What cannot be learned from ends with what was measured kept, and says how to go on."""
    user.shapes.write_text(SHAPES[0])
    result = user.run(*user.tune("--json", "--budget", "2s"))
    assert (result.returncode, result.stdout) == (1, "")
    told = " ".join(result.stderr.split())
    assert re.search(r"error: [1-9] problems? measured on", told)
    assert re.search(r"training needs 10; run the command again with --budget \dm to add more", told)


@pytest.mark.long
def test_for_a_program(user: User, tmp_path: Path) -> None:
    """Its products are measured first, then some that are like them; the next run of it uses the model."""
    program = tmp_path / "program.py"
    program.write_text(USE)
    what = str(PROGRAMS / "diode"), "tune", "--device", "cpu", "--folds", "0", "--from-script", str(program), "--json"
    (tuned,) = json.loads(user.done(*what).stdout)
    assert tuned["rounds"][0]["problems"] == 12
    assert tuned["rounds"][0]["measured"] >= 10  # all that it needs; a machine that is busy gets no further
    plan = user.plan()
    assert plan is not None
    assert plan.startswith("mm:64x80x96/nn/fp32  # program/compiled\n")
    after = user.done(str(PROGRAMS / "python"), str(program))
    assert json.loads(after.stdout)["model_selections"] == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--budget", "soon"), "--budget 'soon' is not a duration; write 90, 90s, 30m or 2h"),
        (("--budget", "0"), "--budget 0 leaves no time to measure"),
        (("--hardware", "h200"), "a GPU elsewhere cannot be measured; add --dry-run"),
        (("--dtype", "int3"), "unknown dtype 'int3'"),
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--shape", "bogus"), "'bogus' is not a shape"),
        (("--family", "nosuch"), "unknown family 'nosuch'"),
        (("--shapeset", "missing.json"), "missing.json: cannot read the shape set"),
        (
            ("--from-script", "missing.py --steps 1"),
            "--from-script 'missing.py --steps 1': no such file; name a Python",
        ),
        (("--from-script", __file__, "--dtype", "bf16"), "--from-script takes the dtypes of the program"),
        (("--from-script", __file__, "--dry-run", "--hardware", "h200"), "--from-script compiles for this machine"),
        (("--leave-out", "missing.txt"), "missing.txt: cannot read the shape set"),
    ],
)
def test_bad_usage(user: User, options: tuple[str, ...], said: str) -> None:
    """What cannot be understood is refused before anything is begun."""
    result = user.run(*user.tune(*options))
    assert (result.returncode, said in " ".join(result.stderr.split()), user.runs()) == (2, True, [])


@pytest.mark.long
def test_planning_for_a_gpu_elsewhere(user: User) -> None:
    """A dry run says how many problems a budget is enough for on a known GPU, with the cores of such a machine."""
    command = str(PROGRAMS / "diode"), "tune", "--dry-run", "--hardware", "h200", "--budget", "10m", "--json"
    (foreseen,) = json.loads(user.done(*command).stdout)
    assert (foreseen["hardware"], foreseen["cores"], len(foreseen["rounds"])) == ("NVIDIA H200", 16, 3)
    assert 300 < foreseen["vendor_problems"] < foreseen["problems"] < foreseen["targets"]
    assert foreseen["estimate_s"] == pytest.approx(600, rel=0.05)
    assert foreseen["too_few"] is None
    assert not user.data.exists()


@long
def test_planning_for_too_few_problems(user: User) -> None:
    """A dry run says in advance what the run itself would end with, and which budget is enough."""
    command = str(PROGRAMS / "diode"), "tune", "--dry-run", "--hardware", "h200", "--budget"
    named, told = user.done(*command, "1s").stderr.splitlines()
    assert named == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)"
    said = r"^that makes (\d) problems, but training needs 10; give --budget 2m$"
    found = re.search(said, told)
    assert found is not None
    (foreseen,) = json.loads(user.done(*command, "1s", "--json").stdout)
    assert (str(foreseen["problems"]), foreseen["too_few"]) == (found[1], told)
    assert user.done(*command, "2m").stderr.splitlines() == [named]


@pytest.mark.long
def test_collect_and_train(user: User, tmp_path: Path) -> None:
    """Upstream's one step makes both sets, the model and the judgement; steps whose files are there can be left out."""
    files = "--dataset", str(tmp_path / "set.jsonl"), "--model", str(tmp_path / "m.pt")
    small = "--device", "cpu", "--op", "mm", "--max-size", "64", "--num-shapes", "11", "--num-epochs", "3"
    command = str(PROGRAMS / "diode"), "collect-and-train", *files, *small
    planned = [line.split()[2] for line in user.done(*command, "--dry-run").stderr.splitlines()]
    assert planned == ["collect", "collect", "train", "evaluate"]
    assert list(tmp_path.glob("set*")) == []
    done = user.done(*command)
    assert "regret@1" in done.stdout
    assert {path.name for path in tmp_path.glob("*.*")} >= {"set.jsonl", "set-validation.jsonl", "m.pt", "m.json"}
    trained = (tmp_path / "m.pt").read_bytes()
    skipped = user.done(*command, "--skip-collection", "--skip-training")
    assert [line.split()[2:4] for line in skipped.stderr.splitlines() if line.startswith("$")] == [
        ["collect", "create-validation"],
        ["evaluate", "--model"],
    ]
    assert (tmp_path / "m.pt").read_bytes() == trained
    left = user.done(*command, "--skip-collection", "--skip-validation", "--skip-training", "--dry-run")
    assert left.stderr == ""
