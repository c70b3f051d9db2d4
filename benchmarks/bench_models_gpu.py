r"""Measure what the hook costs and gains on whole models: seconds of the first call, milliseconds of the next ones.

    export PYTHONPATH=.:collectors:trainer:integration
    python benchmarks/bench_models_gpu.py --output models.jsonl
    python benchmarks/bench_models_gpu.py --print models.jsonl

Each model is made from its configuration with random weights, in its own process. The process compiles the model from
empty Inductor and Triton caches, with warm compile workers. The ways are plain ``torch.compile``,
``max_autotune_gemm`` alone, and the hook beside that option. A first compile does not count, since it pays for what a
process loads when it traces the model. Plain is the next. Then all ways take turns under CUDA graphs. Needs a GPU,
torch, triton, numpy, msgpack and transformers; printing needs Python alone.

A run skips the models that its output already holds, so that it can be stopped and started again. On a machine with
four GPUs and 64 cores, one command measures all models:

    for i in 1 2 3 4; do CUDA_VISIBLE_DEVICES=$((i - 1)) taskset -c $((16 * i - 16))-$((16 * i - 1)) \
        python benchmarks/bench_models_gpu.py --shard $i/4 --time-limit 450 --output $OUT/models-$i.jsonl & done; wait
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import model_tables
from model_cases import CASES, DEFAULT_WAYS, PLAIN, WAYS, left, shard
from results import read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, or print the tables of its results."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.print:
        print(model_tables.report([result for path in options.print for result in read(path)]))
        return 0
    if options.output is None:
        parser.error("--output is needed, or --print")
    models, number, shards = _planned(options)
    deadline, failed = time.monotonic() + options.time_limit, []
    for place, model in enumerate(models):
        if time.monotonic() > deadline:
            print(f"shard {number}/{shards}: time limit; not begun: {', '.join(models[place:])}", file=sys.stderr)
            break
        if subprocess.run(_command(model, options), check=False).returncode:
            failed.append(model)
            print(f"{model}: failed", file=sys.stderr)
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="file for results, one JSON line per model; skips models in it")
    parser.add_argument("--seen", type=Path, nargs="+", default=[], help="further files whose models are skipped")
    parser.add_argument("--print", type=Path, nargs="+", help="print the Markdown tables of these files; run nothing")
    parser.add_argument("--model", type=_among(CASES), default=list(CASES), help="comma list (default: all)")
    parser.add_argument(
        "--way",
        type=_among(WAYS),
        default=list(DEFAULT_WAYS),
        help=f"a comma list of {', '.join(WAYS)}; plain is first",
    )
    parser.add_argument("--shard", type=_part, default=(1, 1), metavar="I/N", help="run one of N parts of similar cost")
    parser.add_argument("--again", action="store_true", help="measure a second time; skips models measured twice")
    parser.add_argument(
        "--time-limit", type=float, default=math.inf, metavar="S", help="start no model after S seconds"
    )
    warm_up = argparse.BooleanOptionalAction
    parser.add_argument("--warm-up", action=warm_up, default=True, help="compile each model once before plain's call")
    parser.add_argument("--checkpoint", type=Path, help="model of the hook (default: the hook's choice)")
    parser.add_argument("--picks", type=Path, help="picks file of the hook")
    parser.add_argument("--spool", type=Path, help="keep what Inductor times in a folder for diode-ingest")
    return parser


def _among(known: Collection[str]) -> Callable[[str], list[str]]:
    """Return a parser of comma lists of known names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(text.split(",")))
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return names

    return parse


def _part(text: str) -> tuple[int, int]:
    """Return the number of a shard and the number of shards."""
    number, _, shards = text.partition("/")
    if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 1 to N, such as 2/4")
    return int(number), int(shards)


def _planned(options: argparse.Namespace) -> tuple[list[str], int, int]:
    """Return the models to run here, and the shard.

    Shards skip the models that ``--seen`` holds. Models in the output, which each shard has for itself, stay in the
    shard.
    """
    number, shards = options.shard
    seen = [result for path in options.seen for result in read(path)]
    mine = shard(left(options.model, _repeat(options), seen), number, shards)
    return left(mine, _repeat(options), read(options.output)), number, shards


def _repeat(options: argparse.Namespace) -> int:
    return 2 if options.again else 1


def _command(model: str, options: argparse.Namespace) -> list[str]:
    """Return the command that measures one model."""
    ways = ",".join([PLAIN, *(way for way in options.way if way != PLAIN)])
    command = [sys.executable, str(Path(__file__).with_name("time_model.py")), model, "--way", ways]
    command += ["--output", str(options.output), "--repeat", str(_repeat(options))]
    command += ["--checkpoint", str(options.checkpoint)] if options.checkpoint else []
    command += ["--picks", str(options.picks)] if options.picks else []
    command += ["--spool", str(options.spool)] if options.spool else []
    return [*command, "--warm-up" if options.warm_up else "--no-warm-up"]


if __name__ == "__main__":
    sys.exit(main())
