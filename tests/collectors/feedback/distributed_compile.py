"""Compiles two products on one of two ranks that share the autotuning, and prints what a listener covered.

python distributed_compile.py RENDEZVOUS_FILE RANK
"""

from __future__ import annotations

import faulthandler
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diode_collectors.feedback.listening import AutotuningListener
from inductor_harness import compile_and_run, triton_choices_on_cpu

LIFE_S = 150
"""After so many seconds a rank says where it is and ends; it waits two thirds of that for the other."""


def main() -> None:
    """Compile as this rank."""
    faulthandler.dump_traceback_later(LIFE_S, exit=True)
    # Else gloo looks the host's name up, which a resolver may answer late or wrongly.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rendezvous, rank = sys.argv[1], int(sys.argv[2])
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=timedelta(seconds=LIFE_S * 2 // 3)
    )
    a, b = torch.zeros(64, 128), torch.zeros(128, 32)
    settings = {"distributed_max_autotune_gemm": True}
    with triton_choices_on_cpu(deferred=True, **settings), AutotuningListener() as listener:
        compile_and_run(lambda a, b: torch.mm(torch.mm(a, b), b.t()), a, b)
    print(listener.coverage(), flush=True)  # noqa: T201 - the test reads it
    # Neither gloo's threads nor anything else that runs at exit can hold a rank up that has said what it saw.
    os._exit(0)


if __name__ == "__main__":
    main()
