"""Compile a few matrix products, and keep the measurements of Inductor's autotuner.

The Triton kernels go into a data set, which is saved. With ``--spool`` every kernel also goes into a spool, from
which `diode-ingest` takes it to the warehouse.

    python examples/collect_matmul_dataset.py [--output matmul_dataset.json] [--spool DIR]

This takes a dozen seconds on a GPU. A CPU runs no Triton kernels: Inductor then times C++ kernels, which a spool can
hold and a data set cannot.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # a compile from a cache times nothing

import torch
from torch._inductor import config as inductor_config

from diode_collectors.matmul import MatmulDatasetCollector, collect_to_spool
from diode_store.errors import DiodeError
from diode_store.exchange.foreign.torch_diode_files import known_suffix

BATCH, TOKENS, HIDDEN, WIDE = 4, 64, 128, 256


def compile_products(device: str) -> None:
    """Let Inductor choose the kernels of a bmm and, if it autotunes them, of an mm and an addmm."""
    dtype = torch.float16 if device == "cuda" else torch.float32
    x, w, bias = (
        torch.randn(*size, device=device, dtype=dtype) for size in ((TOKENS, HIDDEN), (HIDDEN, WIDE), (WIDE,))
    )
    heads, keys = (torch.randn(BATCH, *size, device=device, dtype=dtype) for size in ((TOKENS, 32), (32, 48)))
    with torch.no_grad():
        torch.compile(torch.bmm, mode="max-autotune-no-cudagraphs")(heads, keys)
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(x, w)
        torch.compile(torch.addmm, mode="max-autotune-no-cudagraphs")(bias, x, w)


def show(collector: MatmulDatasetCollector) -> None:
    """Print how many compiles were seen, and a line for each collected problem."""
    print(collector.coverage())
    print(f"{collector.stats.timings} timings")
    for (device, op, shape), best in collector.get_dataset().get_fastest_configs().items():
        size = f"{shape.B} x ({shape.M} x {shape.K}) x ({shape.K} x {shape.N}) {shape.M_dtype}"
        print(f"{device}: {op} {size}: fastest Triton tile {best.block_m} x {best.block_n} x {best.block_k}")


def main() -> int:
    """Collect, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="matmul_dataset.json", help=".json or .msgpack")
    parser.add_argument("--spool", help="folder that diode-ingest reads")
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        inductor_config.max_autotune_gemm_backends = "CPP,ATEN"
    try:
        known_suffix(options.output)  # before anything is compiled
        with contextlib.ExitStack() as stack:
            if options.spool:
                stack.enter_context(collect_to_spool(options.spool))
            collector = stack.enter_context(MatmulDatasetCollector())
            compile_products("cuda" if on_gpu else "cpu")
        show(collector)
        collector.save_to_file(options.output)
    except DiodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"saved {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
