"""Run `diode tune` on this machine's GPU, compile a program with the new model, and judge the model.

    PYTHONPATH=.:collectors:trainer:integration:tuning python benchmarks/bench_tune_gpu.py --folder tuned --budget 10m

Runs `diode tune --from-scratch` in its own data folder, without the test problems of `worlds.py`. Then it compiles a
small program in a new process with the resulting model. Finally it judges the model beside cuBLAS alone: the loss of
each, and their ratio. The test problems are timed on an NVIDIA H200 and on an H100; other GPUs cannot be judged. An
interrupted run resumes in the same folder. Allow the budget plus five minutes for starting sweeps and training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_tune
import numpy as np
import results
import worlds

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.shapesets import as_text
from diode_store.command_line.console import print_rows
from diode_trainer import artifact
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Prediction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_trainer.data.dataset import Examples

DIODE = (sys.executable, "-W", "ignore", "-c", "from diode_store.command_line.cli import main; main()")
PROGRAM = """
import sys, time, torch, torch_diode
device, dtype = sys.argv[1], torch.float32 if sys.argv[1] == "cpu" else torch.bfloat16
torch.manual_seed(0)
layers = [(588, 1280), (1280, 5120), (5120, 1280), (1280, 1001)]
model = torch.nn.Sequential(*(torch.nn.Linear(*sizes) for sizes in layers)).to(device, dtype).eval()
x = torch.randn(1028, 588, device=device, dtype=dtype)
a, b = (torch.randn(48, *sizes, device=device, dtype=dtype) for sizes in ((10, 64), (64, 777)))
with torch.no_grad():
    for function, arguments in ((model, (x,)), (torch.bmm, (a, b))):
        wanted = function(*arguments).float()
        began = time.perf_counter()
        found = torch.compile(function, options={"max_autotune_gemm": True})(*arguments).float()
        seconds, error = time.perf_counter() - began, (found - wanted).norm() / wanted.norm()
        print(f"{type(function).__name__}: first call {seconds:.1f} s, relative error {error:.1e}")
print(torch_diode.report())
"""


def main() -> int:
    """Tune, compile, judge, append and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="data folder, model, logs and results.jsonl")
    parser.add_argument("--budget", default="10m", help="time to measure (default: 10m)")
    parser.add_argument("--device", default="cuda:0", help="cuda:N, a comma list, or cpu to try it (default: cuda:0)")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    left_out, judged = folder / "left-out.txt", worlds.judged_on_h200()
    left_out.write_text(as_text(dict.fromkeys(SweepProblem.of_shape(e.shape) for of in judged.values() for e in of)))
    environment = os.environ | {"XDG_DATA_HOME": str(folder / "data"), "XDG_CACHE_HOME": str(folder / "cache")}

    began = time.perf_counter()
    what = ("--budget", options.budget, "--device", options.device, "--leave-out", str(left_out), "--from-scratch")
    (tuned,) = json.loads(_logged([*DIODE, "tune", *what, "--json"], environment, folder / "tune.log"))
    result: dict[str, Any] = {"budget": options.budget, "s": round(time.perf_counter() - began)}
    result |= {"hardware": tuned["hardware"], "rounds": tuned["rounds"]}
    used = [sys.executable, "-c", PROGRAM, options.device.partition(",")[0]]
    chosen_by = {"DIODE_MODEL": tuned["model"], "DIODE_MODE": "zero"}
    result["use"] = _logged(used, environment | chosen_by, folder / "use.log")
    print(result["use"])
    model = artifact.load(Path(tuned["model"]))
    tested = [*judged.items(), *worlds.judged_on_h100().items()]
    on_this = [(name, of) for name, of in tested if of[0].hardware.name == tuned["hardware"]]
    result["judged"] = {name: _judged(model, of) for name, of in on_this}
    results.append(folder / "results.jsonl", result)
    _show(result)
    return 0


def _logged(command: list[str], environment: dict[str, str], log: Path) -> str:
    """Run a command, log its stderr, and return its stdout.

    Raises:
        SystemExit: the command failed; the message has the end of its stderr.
    """
    with log.open("a") as output:
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=output, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{log}: exit {run.returncode}\n" + "\n".join(log.read_text().splitlines()[-12:]))
    return run.stdout


def _judged(model: artifact.TimingModel, tested: Sequence[Examples]) -> dict[str, float]:
    """Return regret@k of a model by k, and regret@1 of cuBLAS alone."""
    vendor = [Prediction.without_members(np.where(example.is_vendor, 1.0, 2.0)) for example in tested]
    ours, theirs = bench_tune.regrets(tested, predict(model, tested)), bench_tune.regrets(tested, vendor)
    return {"problems": len(tested), **ours, "cublas": theirs["1"]}


def _show(result: dict[str, Any]) -> None:
    measured = sum(each["measured"] for each in result["rounds"])
    timings = sum(each["timings"] for each in result["rounds"])
    print(f"{result['hardware']}: {measured} problems, {timings} timings, {result['s']} s in all")
    if not result["judged"]:
        print("there is nothing to judge it by: the problems are timed on an NVIDIA H200 and an NVIDIA H100 80GB HBM3")
        return
    rows = []
    for name, of in result["judged"].items():
        loses = (of["1"] - 1) / (of["cublas"] - 1)
        rows.append(
            (name, str(of["problems"]), f"{of['1']:.4f}", f"{of['5']:.4f}", f"{of['cublas']:.4f}", f"{loses:.2f}")
        )
    columns = ("judged by", "problems", "regret@1", "@5", "cuBLAS alone", "loses, of cuBLAS's")
    print_rows(columns, rows, title="Regret of what was tuned, beside the vendor's kernel alone")


if __name__ == "__main__":
    sys.exit(main())
