"""Measures attention with kernels that Triton's interpreter runs, and prints each kernel's outcome.

The interpreter has to be on before Triton is loaded (``TRITON_INTERPRET=1``), so this is a program of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from scripted_timer import Kernel
from test_sweep_triton import scripted
from torch._inductor.runtime.benchmarking import benchmarker

from diode_collectors.problems.problem import parse_problem
from diode_collectors.sweep.lane import measuring as module
from flex_on_cpu import flex_on_cpu


def _run_once(function: Any, *_: Any, **__: Any) -> float:
    function()
    return 1.0


def run(choice: Any, benchmark: Any) -> Kernel:
    """Run a choice once over the inputs that it would be timed with."""
    with mock.patch.object(type(benchmarker), "benchmark", lambda _self, function, *_, **__: _run_once(function)):
        benchmark()
    return Kernel(choice.name, 10.0)


outcomes = {}
for text in sys.argv[1:]:
    with (
        flex_on_cpu(multiprocessors=4),
        scripted(Path(tempfile.mkdtemp())) as (measuring, _),
        mock.patch.object(module, "captured", run),
    ):
        found = measuring.measure(parse_problem(text))
    assert found.measurement is not None, found.silent
    outcomes[text] = [str(timing.outcome) for timing in found.measurement.timings]
sys.stdout.write(json.dumps(outcomes))
