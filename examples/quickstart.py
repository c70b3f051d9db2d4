"""Run the whole loop on the bundled measurements of NVIDIA H200 and H100 GPUs, by the commands of production.

Creates the warehouse, ingests the bundled measurements through the spool, and prints the fastest kernels of a known
layer on the H200. Then it trains and evaluates a small model for the H200, and compiles a small module with the hook
installed. It ends with a picture of the evaluation. Everything goes to the default folders of the commands
(``diode db stats`` names them). A second run adds nothing.

    python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import platformdirs

HARDWARE = "NVIDIA H200"
LAYER, M, N, K = "Phi-3-mini, attention q/k/v, 16 tokens", 16, 9216, 3072
# The settings file may name a shared warehouse, where the bundled measurements do not belong.
WITHOUT_SETTINGS_FILE = {"DIODE_CONFIG": os.devnull}
# Threads that spin while they wait take cores from the threads that they wait for.
WITHOUT_SPINNING = {"OMP_WAIT_POLICY": "PASSIVE"}
MODEL_DIRECTORY = Path(platformdirs.user_data_dir("torch-diode")) / "models" / "quickstart"
MODEL = MODEL_DIRECTORY / "quickstart_model.pt"
PICTURE = MODEL_DIRECTORY / "quickstart.html"
RANKINGS = {
    "inductor_default": "Inductor's DEFAULT list, all benchmarked",
    "vendor_only": "the vendor's kernel",
    "nearest_problem": "best kernel of the nearest measured problem",
    "fold_ranking": "one ranking for all problems",
    "random": "drawn at random",
}
NEXT = (
    "diode predict --op mm --m 16 --n 9216 --k 3072 --layout nt --hardware h200",
    "diode fastest --hardware h100 --op mm --n 4096 --k 4096",
    "diode models show v4_model",
)


def main() -> int:
    """Run each step, stop at the first failure, and print the seconds of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retrain", action="store_true", help="train again even if the model exists")
    options = parser.parse_args()
    start = time.monotonic()
    step("Create the warehouse, or bring it up to date", "diode", "db", "upgrade")
    step("Ingest the bundled measurements through the spool", "diode-ingest", "--once", "--bundled")
    step("Ask the warehouse", "diode", "query", COUNT_QUERY)
    shape = ("--op", "mm", "--m", str(M), "--n", str(N), "--k", str(K))
    step(f"Fastest kernels: {LAYER}", "diode", "fastest", "--hardware", HARDWARE, *shape)
    train(retrain=options.retrain)
    show_evaluation(json.loads(MODEL.with_suffix(".json").read_text(encoding="utf-8")))
    compile_script = str(Path(__file__).with_name("compile_with_hook.py"))
    step("Compile a module with the hook installed", sys.executable, compile_script, "--model", str(MODEL))
    print(f"\nDone in {time.monotonic() - start:.0f} s. Look at {PICTURE.as_uri()}, then try:")
    for command in NEXT:
        print(f"  {command}")
    return 0


PAGE = """<!doctype html><meta charset="utf-8"><title>torch-diode quickstart</title>
<style>body{{font:16px sans-serif;margin:2em}}td{{padding:.3em .8em}}td+td{{width:60%;white-space:nowrap}}
div{{display:inline-block;background:#3b6fb6;height:1em;margin-right:.5em;min-width:2px}}</style>
<h1>How much slower than the fastest kernel</h1>
<p>Geometric mean over unseen problems on an NVIDIA H200, shorter is better (logarithmic).</p>
<table width="100%">{bars}</table>
"""
COUNT_QUERY = (
    "SELECT hardware, op, dtype, count(DISTINCT problem_id) AS problems, count(*) AS timings, "
    "count(*) FILTER (WHERE is_estimate) AS estimates FROM observations GROUP BY ALL ORDER BY timings DESC"
)


def train(*, retrain: bool) -> None:
    """Train a small model with one held-out fold, unless an earlier run left a model."""
    if MODEL.exists() and not retrain:
        print(f"\n── Train a model\n   {MODEL} is there; `python examples/quickstart.py --retrain` trains it again")
        return
    MODEL_DIRECTORY.mkdir(parents=True, exist_ok=True)
    some = ("--dtype", "bf16", "--regime", "deployed")
    small = ("--num-epochs", "9", "--members", "2", "--hidden-dim", "64", "--num-layers", "2")
    quick = ("--folds", "1", "--quick-baselines", *(("--force", "--restart") if retrain else ()))
    title = "Train a small model, and evaluate it on problems that it has not seen (the longest step)"
    step(title, "diode-train", "--hardware", HARDWARE, *some, *small, *quick, "--output", str(MODEL))


def show_evaluation(card: dict[str, Any]) -> None:
    """Print the evaluation on a model's card, and draw it."""
    model, baselines = card["metrics"]["all_choices"], card["baselines"]["all_choices"]
    loss = {name: 100 * (baselines[name]["regret"]["1"]["geomean"] - 1) for name in RANKINGS if name in baselines}
    first, third = (100 * (model["regret"][k]["geomean"] - 1) for k in ("1", "3"))
    rows = {"the model's first choice": first, "the best of the model's first 3, benchmarked": third}
    rows |= {RANKINGS[name]: value for name, value in loss.items()}
    print(f"\n── What to see: how much slower than the fastest kernel, on {model['problems']} unseen problems")
    for name, value in rows.items():
        print(f"   {value:7.1f}%  {name}")
    print("   The model benchmarks nothing for its first choice. Inductor's DEFAULT benchmarks its whole list for each")
    print(f"   problem, some 20 kernels; it is {'ahead' if loss['inductor_default'] < first else 'behind'} here.")
    print("   The shipped model learned longer: the last command below shows how it does.")
    PICTURE.write_text(drawn(rows), encoding="utf-8")


def drawn(rows: dict[str, float]) -> str:
    """Return a page with a bar for each row, scaled so that one percent is visible and the longest bar fits."""
    longest = math.log1p(max(rows.values()))
    bars = "".join(
        f'<tr><td>{html.escape(name)}<td><div style="width:calc({share:.3f} * (100% - 5em))"></div>{value:.1f}%'
        for name, value in rows.items()
        for share in [math.log1p(value) / longest]
    )
    return PAGE.format(bars=bars)


def step(title: str, program: str, *arguments: str) -> None:
    """Print a command as a user would type it, run it, and exit with its code if it fails."""
    shown = " ".join(f'"{a}"' if " " in a else a for a in (Path(program).name, *arguments))
    print(f"\n── {title}\n$ {shown}", flush=True)
    # An absolute program stays as it is; a bare name is looked up beside this Python, then on the PATH.
    executable = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if executable is None:
        sys.exit(f"error: {program} is not installed; run `make setup`, or `pip install torch-diode`")
    begin = time.monotonic()
    returncode = run(executable, *arguments)
    if returncode:
        sys.exit(returncode)
    print(f"   ({time.monotonic() - begin:.1f} s)", flush=True)


def run(*command: str) -> int:
    """Run a command and return its code; on Ctrl-C or SIGTERM end it silently."""
    # A command inherits blocked signals, so that only we get Ctrl-C; here the signal waits until the command runs.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = subprocess.Popen(command, env={**WITHOUT_SPINNING, **os.environ, **WITHOUT_SETTINGS_FILE})
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted; run it again, what is done is kept", file=sys.stderr)
        sys.exit(130)
