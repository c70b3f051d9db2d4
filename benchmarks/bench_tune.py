"""What a model knows after so many minutes of `diode tune`, by how they were spent: by replay of the bundled sweeps.

    python benchmarks/bench_tune.py --output results.jsonl [--way chosen] [--minutes 10] [--time-limit-s 3000]
    python benchmarks/bench_tune.py --costs

The bundled measurements without some problems stand for a device that nobody has measured. A way chooses problems of
them until its minutes are spent, by what the logs of these sweeps cost (`--costs`), and fits a model. It is judged by
the problems that were left out: those timed exhaustively, and three families. The baselines are problems as they come
(drawn), and a model of all of them (everything). Takes an hour: results are appended, and those that are there are not
made again, so that it can be spread over several runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import numpy as np
import shipped_data

from diode_collectors.problems.choices import seconds_of
from diode_collectors.problems.problem import FLOAT32, SweepProblem
from diode_integration.tuning.choosing import choose
from diode_integration.tuning.doubt import doubts
from diode_integration.tuning.rounds import SAMPLE, count_rounds
from diode_store.console import print_rows
from diode_store.inductor_default import GemmConfig, default_configs
from diode_trainer.commands.recipes import make_recipe
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.from_file import load_measurements
from diode_trainer.data.tensors import pack
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit, limited_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from diode_store.records import Measurement
    from diode_trainer.data.dataset import Examples
