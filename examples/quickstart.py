"""The whole loop on the bundled NVIDIA H200 measurements, by the commands that production uses.

Creates the warehouse, ingests the bundled measurements through the spool, prints the fastest kernels of a few
known layers, trains a model, evaluates it, and compiles a small module with the hook installed. Everything goes
where the commands keep it by default (``diode db stats`` says where); run it twice and nothing is added.

    python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import platformdirs

HARDWARE = "NVIDIA H200"
# Linear layers of public models, at a decoding and at prefill batches: (m, n, k).
LAYERS = {
    "Phi-3-mini, attention q/k/v, 16 tokens": (16, 9216, 3072),
    "Phi-3-mini, attention output, 4096 tokens": (4096, 3072, 3072),
    "Qwen2.5-14B, MLP up, 2048 tokens": (2048, 13824, 5120),
}
# The settings file may name a warehouse that others share; the bundled measurements do not belong there.
WITHOUT_SETTINGS_FILE = {"DIODE_CONFIG": os.devnull}
MODEL_DIRECTORY = Path(platformdirs.user_data_dir("torch-diode")) / "models" / "quickstart"
MODEL = MODEL_DIRECTORY / "quickstart_model.pt"


def main() -> int:
    """Run each step, stop at the first that fails, and print how long each took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retrain", action="store_true", help="train again although the model is there")
    options = parser.parse_args()
    start = time.monotonic()
    step("Create the warehouse, or bring it up to date", "diode", "db", "upgrade")
    step("Ingest the bundled measurements through the spool", "diode-ingest", "--once", "--bundled")
    step("Ask the warehouse", "diode", "query", COUNT_QUERY)
    for name, (m, n, k) in LAYERS.items():
        shape = ("--m", str(m), "--n", str(n), "--k", str(k))
        step(f"Fastest kernels: {name}", "diode", "fastest", "--hardware", HARDWARE, "--op", "mm", *shape)
    train(retrain=options.retrain)
    step("Evaluate it", "diode", "evaluate", "--model", str(MODEL), "--hardware", HARDWARE, "--top-n-worst", "3")
    compile_script = str(Path(__file__).with_name("compile_with_hook.py"))
    step("Compile a module with the hook installed", sys.executable, compile_script, "--model", str(MODEL))
    print(f"\nDone in {time.monotonic() - start:.0f} s. Next: README.md, or `diode --help`.")
    return 0


COUNT_QUERY = (
    "SELECT hardware, op, dtype, count(DISTINCT problem_id) AS problems, count(*) AS timings, "
    "count(*) FILTER (WHERE is_estimate) AS estimates FROM observations GROUP BY ALL ORDER BY timings DESC"
)


def train(*, retrain: bool) -> None:
    """Train with one held-out fold and a third of the epochs, unless an earlier run left a model."""
    if MODEL.exists() and not retrain:
        print(f"\n── Train a model\n   {MODEL} is there; `python examples/quickstart.py --retrain` trains it again")
        return
    MODEL_DIRECTORY.mkdir(parents=True, exist_ok=True)
    quick = ("--folds", "1", "--num-epochs", "25")
    command = ("diode-train", "--hardware", HARDWARE, *quick, "--resume", "--output", str(MODEL))
    step("Train a model, one fold held out, with a third of the epochs", *command, *(("--force",) if retrain else ()))


def step(title: str, program: str, *arguments: str) -> None:
    """Print a command as a user would type it, run it, and exit with its code if it fails."""
    shown = " ".join(f'"{a}"' if " " in a else a for a in (Path(program).name, *arguments))
    print(f"\n── {title}\n$ {shown}", flush=True)
    # An absolute program stays as it is; a bare name is looked for beside this Python, then on the PATH.
    executable = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if executable is None:
        sys.exit(f"error: {program} is not installed; run `make setup`, or `pip install torch-diode`")
    begin = time.monotonic()
    returncode = run(executable, *arguments)
    if returncode:
        sys.exit(returncode)
    print(f"   ({time.monotonic() - begin:.1f} s)", flush=True)


def run(*command: str) -> int:
    """Run a command and return its code; on Ctrl-C end it silently, whatever it is doing."""
    # A command inherits blocked signals, so that only we get Ctrl-C; here it waits until the command runs.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    process = subprocess.Popen(command, env={**os.environ, **WITHOUT_SETTINGS_FILE})
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted; run it again, what is done is kept", file=sys.stderr)
        sys.exit(130)
