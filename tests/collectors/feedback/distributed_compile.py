"""Compiles two products on one of two ranks that share the autotuning, and prints what a listener covered.

python distributed_compile.py RENDEZVOUS_FILE RANK
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from diode_collectors.feedback.listening import AutotuningListener
from inductor_harness import compile_and_run, triton_choices_on_cpu


def main() -> None:
    """Compile as this rank."""
    rendezvous, rank = sys.argv[1], int(sys.argv[2])
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    a, b = torch.zeros(64, 128), torch.zeros(128, 32)
    settings = {"distributed_max_autotune_gemm": True}
    with triton_choices_on_cpu(deferred=True, **settings), AutotuningListener() as listener:
        compile_and_run(lambda a, b: torch.mm(torch.mm(a, b), b.t()), a, b)
    distributed.destroy_process_group()
    print(listener.coverage())  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
