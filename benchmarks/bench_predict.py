"""What a prediction costs: features and scores of 1,500 candidates, beside Inductor's own listing of them.

    python benchmarks/bench_predict.py [--model NAME.pt]

One core, one mm (1024 x 1024 by 1024 x 1024, bf16) on an H200, no GPU needed. The baseline is Inductor's listing of
its EXHAUSTIVE candidates in the same run: whatever ranks them has to wait for that first. To make 1,500, the first of
them are asked twice.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import columns_of_choices, problem_of_inputs
from diode_integration import choices as hook
from diode_integration.install import install
from diode_store.devices import known_device
from diode_trainer import artifact
from diode_trainer.features import config_features, problem_features

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE = 1024
_CANDIDATES = 1500
_REPEATS = 50


class Bench(hook.DiodeInductorChoices):
    """Measures inside the hook, where Inductor's graph is alive."""

    seconds: dict[str, float]
    listed: int

    def _list(self, offer: Any, predictor: Any, hardware: Any) -> Any:
        listing = super()._list(offer, predictor, hardware)
        model, shape = predictor.model, problem_of_inputs(offer.kernel_inputs, offer.op_name).shape
        listed = columns_of_choices(listing.ranked)
        self.listed = len(listed)
        columns = listed.take(np.arange(_CANDIDATES) % len(listed))

        def features() -> None:
            problem_features(shape, hardware)
            config_features(shape, hardware, columns)

        self.seconds = {
            "Inductor's listing (baseline)": _median(lambda: super(Bench, self)._list(offer, predictor, hardware)),
            "choices to columns": _median(lambda: columns_of_choices(listing.ranked)),
            "features": _median(features),
            "features and scores": _median(lambda: model.predict_us(shape, hardware, columns)),
        }
        return listing


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, help="checkpoint; the best shipped model if not given")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loading = _median(lambda: artifact.load(options.model) if options.model else artifact.load_shipped(), repeats=5)
    handler = Bench(options.model, hardware=known_device("NVIDIA H200"), observe=True, enable_fallback=False)
    matrix = torch.randn(_SIZE, _SIZE, dtype=torch.bfloat16)
    with install(handler), torch.no_grad(), inductor_config.patch(fx_graph_cache=False):
        torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")(matrix, matrix)
    baseline = handler.seconds["Inductor's listing (baseline)"]
    print(f"{handler.listed} listed, {_CANDIDATES} ranked; loading the model takes {loading * 1e3:.1f} ms")
    for name, seconds in handler.seconds.items():
        print(f"{name:32s} {seconds * 1e3:8.3f} ms   {seconds / baseline:6.3f} of the listing")
    return 0


def _median(function: Callable[[], object], repeats: int = _REPEATS) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
