"""Compile a small module with the hook installed, and print its choices and reasons.

On a machine with a GPU that the model knows, the hook chooses the kernels. Elsewhere it only observes, as if it ran on
``--hardware``: it ranks the candidates of that GPU, and stock Inductor compiles.

    python examples/compile_with_hook.py [--model FILE] [--zero]
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table
from torch._inductor import config as inductor_config

from diode_integration import install
from diode_integration.inductor_integration import install_diode_choices
from diode_store.errors import DiodeError

TOKENS, HIDDEN, WIDE = 512, 1024, 4096
# Largest difference of compiled and eager, relative to the largest output: bf16 keeps 8 bits, and the order of sums
# differs.
TOLERANCE = 2e-2


class Block(torch.nn.Module):
    """Two linear layers, the first with a bias, as in a transformer's MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, WIDE)
        self.down = torch.nn.Linear(WIDE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (TOKENS, HIDDEN) to (TOKENS, HIDDEN)."""
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


def main() -> int:
    """Compile, compare with eager, and print the decisions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="checkpoint; the shipped model by default")
    parser.add_argument("--hardware", default="NVIDIA H200", help="device to observe for without a GPU")
    parser.add_argument("--zero", action="store_true", help="keep one choice and benchmark nothing")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    where = {} if on_gpu else {"hardware": options.hardware, "observe": True}
    try:
        choices = install_diode_choices(
            options.model, enable_fallback=False, mode="zero" if options.zero else None, **where
        )
    except DiodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console = Console()
    error = compile_and_compare("cuda" if on_gpu else "cpu")
    install.uninstall()
    table = Table("op", "M x N x K", "ranked", "kept (predicted us)", "vendor us", "why", title=title(on_gpu, options))
    for decision in choices.decisions():
        shape = decision.problem.shape if decision.problem else None
        size = f"{shape.m} x {shape.n} x {shape.k} {shape.layout}" if shape else ""
        lines = "\n".join(f"{kept.config.describe()} ({kept.predicted_us:.1f})" for kept in decision.chosen)
        vendor = f"{decision.vendor_us:.1f}" if decision.vendor_us else ""
        table.add_row(decision.op, size, f"{decision.candidates:,}", lines, vendor, decision.reason)
    console.print(table)
    stats = choices.get_stats()
    console.print(", ".join(f"{name} {value:.4g}" for name, value in stats.items()))
    console.print(f"largest difference from eager: {error:.1e} of the largest output")
    return int(error > TOLERANCE)


def compile_and_compare(device: str) -> float:
    """Compile a ``Block``, and return its largest difference from eager, relative to the largest output."""
    torch.manual_seed(0)
    block = Block().to(device, torch.bfloat16).eval()
    x = torch.randn(TOKENS, HIDDEN, device=device, dtype=torch.bfloat16)
    with torch.no_grad(), inductor_config.patch(max_autotune_gemm_backends="TRITON,ATEN", fx_graph_cache=False):
        compiled = torch.compile(block, mode="max-autotune-no-cudagraphs")(x)
        eager = block(x)
    return float((compiled - eager).abs().max() / eager.abs().max())


def title(on_gpu: bool, options: argparse.Namespace) -> str:  # noqa: FBT001 - a fact, not a switch
    """Return a title that says whether choices were made or only observed."""
    if on_gpu:
        return f"What the hook chose on {torch.cuda.get_device_name()}"
    return (
        f"No GPU here: what the hook would choose on {options.hardware} (observed; stock Inductor compiled for the CPU)"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
