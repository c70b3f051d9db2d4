"""Measure how long the hook takes to decide on the products of whole models, beside Inductor listing each anew.

    python benchmarks/bench_hook.py [--family NAME ...]

One core, as if on an H200; needs no GPU. The products of families' layers (`diode-collect --families`) are compiled
once each with the shipped model, and nothing is run. The hook lets Inductor list a class of shapes once
(`diode_integration.inductor.candidates`). The baseline is the same hook without this cache.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensorMode

from diode_collectors.inductor.adapter import problem_of_inputs
from diode_collectors.problems.families import family_problems
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor.candidates import KnownLists
from diode_integration.install import install

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Problem

_FAMILIES = ("llama3-8b", "bert-large", "vit-l16", "whisper-large-v3", "mixtral-8x7b")
_RUNS = 3


class Timed(DiodeInductorChoices):
    """Records the time of its calls for each problem; Inductor may call it several times for one."""

    seconds: Counter[bytes]

    def choose(self, offer: Any) -> Any:
        """Return the candidates of a call, and note the seconds."""
        key = problem_of_inputs(offer.kernel_inputs, offer.op_name).key
        started = time.perf_counter()
        result = super().choose(offer)
        self.seconds[key] += time.perf_counter() - started
        return result


class NoLists(KnownLists):
    """Caches no list, so that Inductor lists every time."""

    def get(self, _key: object) -> None:
        """Return nothing."""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", action="append", help="default: " + ", ".join(_FAMILIES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    _taken([problem.problem() for problem in family_problems(_FAMILIES[0])][:2], NoLists())  # what happens once
    baselines, means = [], []
    for family in options.family or _FAMILIES:
        problems = list({made.key: made for found in family_problems(family) for made in [found.problem()]}.values())
        runs = [(_taken(problems, NoLists()), _taken(problems, KnownLists())) for _ in range(_RUNS)]
        baseline, taken = (
            [statistics.median(times) for times in zip(*run, strict=True)] for run in zip(*runs, strict=True)
        )
        baselines += baseline
        means += taken
        _show(family, baseline, taken)
    _show("all", baselines, means)
    return 0


def _show(name: str, baseline: Sequence[float], taken: Sequence[float]) -> None:
    ratio = sum(taken) / sum(baseline)
    mean, median, most = (1e3 * pick(taken) for pick in (statistics.mean, statistics.median, max))
    listed = 1e3 * statistics.mean(baseline)
    print(
        f"{name:18s} {len(taken):4d} problems: mean {mean:5.1f} ms, median {median:5.1f}, largest {most:5.1f}; "
        f"{listed:5.1f} with each listed anew (baseline); {ratio:.2f} of the baseline"
    )


def _taken(problems: Sequence[Problem], known: KnownLists) -> list[float]:
    """Return the hook's seconds for each problem, in one compile."""
    handler = Timed(mode="zero", hardware="NVIDIA H200", observe=True, enable_fallback=False)
    handler.seconds, handler._known_lists = Counter(), known  # noqa: SLF001 - what is measured
    ops = [getattr(torch, problem.op) for problem in problems]

    def products(*operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [op(*of_op) for op, of_op in zip(ops, operands, strict=True)]

    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}
    # One of addmm's two ATen kernels is left out, or Inductor would time both on this machine's CPU.
    quiet = {"autotune_num_choices_displayed": 0, "test_configs.autotune_choice_name_regex": "^(?!bias_)"}
    torch.compiler.reset()
    with FakeTensorMode(), inductor_config.patch({**settings, **quiet}), install(handler), suppress(AssertionError):
        torch.compile(products)(*map(_operands, problems))  # compiled, then refused: there is nothing to compute with
    if len(handler.seconds) != len(problems):
        raise SystemExit(f"the hook was asked about {len(handler.seconds)} of {len(problems)} problems")
    return [handler.seconds[problem.key] for problem in problems]


def _operands(problem: Problem) -> list[torch.Tensor]:
    return [torch.empty_strided(s.size, s.stride, dtype=getattr(torch, s.dtype)) for s in problem.inputs]


if __name__ == "__main__":
    sys.exit(main())
