"""Record decisions in a process that forks amid its work; say how the child ended.

python recording_fork.py SPOOL
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from diode_collectors.problems.problem import parse_problem
from diode_integration.decide.decision import Decision, PredictedConfig
from diode_integration.record.log import Stats
from diode_integration.record.recorder import Chooser, Recorder
from diode_store.devices.known import known_device
from diode_store.kernels import KernelConfig

CHILD_SECONDS = 30


def decision(m: int) -> Decision:
    """Return a decision on a product with ``m`` rows."""
    problem = parse_problem(f"mm:{m}x64x64/nn").problem()
    picked = (PredictedConfig(KernelConfig("aten::mm"), 10.0),)
    return Decision("mm", problem, "NVIDIA H200", 3, picked, 10.0, "why", device=known_device("NVIDIA H200"))


def main(spool: str) -> None:
    """Record one decision, fork while another thread could hold the lock, and record one in each process."""
    stats = Stats()
    recorder = Recorder(spool, Chooser("zero/1/1.1", "zero", "a" * 64, 3), stats)
    recorder.take(decision(16), datetime.now(UTC))
    with recorder._lock:  # as if another thread were at it
        child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        recorder.take(decision(32), datetime.now(UTC))
        sys.exit(0)  # through atexit, which hands over
    _, status = os.waitpid(child, 0)
    recorder.take(decision(48), datetime.now(UTC))
    sys.stdout.write(f"child ended with {os.waitstatus_to_exitcode(status)}\n")
    # The parent ends without a word to the recorder: what waits is handed over at exit.


if __name__ == "__main__":
    main(sys.argv[1])
