"""Measure what ``import torch_diode`` costs beside ``import torch``, the baseline in the same run.

    python benchmarks/bench_import.py [--repeats 5]

Each import runs in several processes, and the fastest counts. The last line is the rest of the cost in the first
``torch.compile``: loading the hook and its model, once Inductor is imported.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

_INDUCTOR = "import torch._inductor.compile_fx, torch._inductor.choices"
CODE = {
    "import torch (baseline)": ("", "import torch"),
    "import torch, torch_diode": ("", "import torch, torch_diode"),
    "import Inductor": ("import torch", _INDUCTOR),
    "the hook, in the first compile": (_INDUCTOR, "import torch_diode"),
}
"""Code to run before the clock starts, and code to time."""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    options = parser.parse_args()
    # In turns, so that a machine that becomes busy slows all of them. The first round fills the disk cache.
    rounds = [{name: _seconds(*code) for name, code in CODE.items()} for _ in range(options.repeats + 1)][1:]
    fastest = {name: min(times[name] for times in rounds) for name in CODE}
    baseline = next(iter(fastest.values()))
    for name, seconds in fastest.items():
        print(f"{name:32s} {seconds:6.3f} s   {seconds / baseline:5.2f} of the baseline")
    return 0


def _seconds(before: str, code: str) -> float:
    timed = f"import time\n{before}\nstarted = time.perf_counter()\n{code}\nprint(time.perf_counter() - started)"
    environment = {**os.environ, "DIODE_DISABLE": "0"}
    command = [sys.executable, "-c", timed]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(finished.stdout)


if __name__ == "__main__":
    sys.exit(main())
