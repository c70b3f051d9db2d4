"""What ``import torch_diode`` costs beside ``import torch``, which is the baseline in the same run.

    python benchmarks/bench_import.py [--repeats 5]

Each import runs in a process of its own; medians. The last line is what the import leaves for the first
``torch.compile``: loading the hook and its model, once Inductor has been imported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

_TIMED = "import time; started = time.perf_counter(); {}; print(time.perf_counter() - started)"
_INDUCTOR = "import torch._inductor.compile_fx, torch._inductor.choices"
CODE = {
    "import torch (baseline)": "import torch",
    "import torch, torch_diode": "import torch, torch_diode",
    "import torch and Inductor": f"import torch; {_INDUCTOR}",
    "import torch, torch_diode and Inductor": f"import torch, torch_diode; {_INDUCTOR}",
}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="processes of each kind")
    options = parser.parse_args()
    # In turns, so that a machine that becomes busy slows all of them.
    rounds = [{name: _seconds(code) for name, code in CODE.items()} for _ in range(options.repeats + 1)][1:]
    medians = {name: statistics.median(times[name] for times in rounds) for name in CODE}
    torch, ours, inductor, both = medians.values()
    for name, seconds in medians.items():
        print(f"{name:40s} {seconds:6.3f} s   {seconds / torch:5.2f} of the baseline")
    print(f"import torch_diode adds {ours - torch:.3f} s; the first compile, {both - inductor:.3f} s in all")
    return 0


def _seconds(code: str) -> float:
    environment = {**os.environ, "DIODE_DISABLE": "0"}
    command = [sys.executable, "-c", _TIMED.format(code)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(finished.stdout)


if __name__ == "__main__":
    sys.exit(main())
