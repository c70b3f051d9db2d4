"""A sweep of attention: its record, its lists, and kernels that Triton's interpreter runs on this CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import triton
from scripted_timer import Kernel
from test_sweep_triton import scripted

from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.feedback.records import STAND_IN_MASK
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_collectors.sweep.lane.attention import AttentionReference
from diode_collectors.sweep.lane.sampling import SweepChoices
from diode_store.candidates.attention_space import accumulators_fit
from diode_store.records import Outcome
from flex_on_cpu import flex_on_cpu
from inductor_harness import triton_choices_on_cpu

if TYPE_CHECKING:
    from diode_store.records import KernelConfig, Measurement

pytestmark = pytest.mark.xdist_group("sweeps")
TEXTS = [
    "flex_attention:1x2x256x64/nn/bf16/causal",
    "flex_attention:2x4x300x80:2x300/tt/fp16/window100/block64",
    "flex_attention:1x14x1x64:2x1024/nn/bf16",
    "flex_decoding:2x8x1x64:2x1024/nn/bf16",
    "flex_decoding:2x8x4x64:8x1024x128/nn/bf16/causal",
    "flex_attention_backward:1x4x256x64:2x256/tt/bf16/documents100",
    "flex_attention_backward:1x2x200x64/nn/bf16",
    "flex_attention_backward:1x2x64x64/nn/bf16/causal",
    "flex_attention:1x8x256x64:1x256/tt/bf16/causal",
]


def measured(problem: SweepProblem, folder: Path, space: str = "SAMPLE:20") -> Measurement:
    """Return the record of a problem whose kernels are all right and equally fast."""
    with (
        flex_on_cpu(),
        scripted(folder, lambda choice: Kernel(choice.name, 10.0), space=space) as (measuring, _),
        mock.patch.object(AttentionReference, "error_of", return_value=0.0),
    ):
        found = measuring.measure(problem)
    assert found.measurement is not None, found.silent
    return found.measurement


@pytest.mark.quick(3)
@pytest.mark.parametrize("text", TEXTS)
def test_its_record_is_the_one_that_was_asked_for(text: str, tmp_path: Path) -> None:
    """Forward, decoding and backward, with the mask that only the sweep knows."""
    problem = parse_problem(text)
    assert str(problem) == text
    found = measured(problem, tmp_path)
    assert found.problem.key == problem.problem().key
    assert found.problem.shape == problem.shape
    assert {timing.config.template for timing in found.timings} == {f"triton::{problem.op}"}
    assert {timing.outcome for timing in found.timings} == {Outcome.OK}
    names = {name for timing in found.timings for name, _ in timing.config.kwargs}
    blocks = {"BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2"} if problem.op.endswith("backward") else set()
    assert names == blocks, "sizes, masks and options are the problem's, not the kernel's"
    assert len({timing.config for timing in found.timings}) == len(found.timings) >= 6
    assert not found.flags


def test_samples_hold_inductors_own_list(tmp_path: Path) -> None:
    """And others of the longer one, up to the size; the longer one lacks some of the shorter one."""
    problem = parse_problem("flex_attention:1x2x256x64/causal")
    default, sample, every = (
        {timing.config for timing in measured(problem, tmp_path, space).timings}
        for space in ("DEFAULT", "SAMPLE:20", "EXHAUSTIVE")
    )
    assert default < sample < every
    assert (len(sample), len(every) > 140) == (20, True)
    assert sample == {timing.config for timing in measured(problem, tmp_path).timings}


@pytest.mark.parametrize("op", ["flex_attention", "flex_attention_backward"])
def test_a_draw_leaves_out_configs_that_spill(op: str, tmp_path: Path) -> None:
    """EXHAUSTIVE has them; Inductor's own list is never cut."""
    problem = parse_problem(f"{op}:1x2x256x128/causal")
    default, sample, every = (
        {timing.config for timing in measured(problem, tmp_path, space).timings}
        for space in ("DEFAULT", "SAMPLE:60", "EXHAUSTIVE")
    )

    def fits(config: KernelConfig) -> bool:
        blocks = {"block_m": config.block_m or 0, "block_n": config.block_n or 0}
        blocks |= {name.lower(): int(size) for name, size in config.kwargs}
        return accumulators_fit(problem.shape, blocks, config.num_warps or 0)

    assert default < sample
    assert len(sample) == 60
    assert all(map(fits, sample - default))
    assert not all(map(fits, every))


def test_gradients_compile_in_the_sweeps_thread(tmp_path: Path) -> None:
    """On a GPU autograd has a thread of its own, in which Inductor would list its stock choices."""
    seen: dict[str, bool] = {}
    stock = SweepChoices._flex

    def listed(choices: SweepChoices, op: str, *rest: Any) -> list[Any]:
        seen[op] = torch._C._is_multithreading_enabled()
        return stock(choices, op, *rest)

    with mock.patch.object(SweepChoices, "_flex", listed):
        measured(parse_problem("flex_attention_backward:1x2x256x64/causal"), tmp_path)
    assert torch._C._is_multithreading_enabled()
    assert seen["flex_attention_backward"] is False


def test_what_inductor_times_itself_is_kept_and_not_trusted(tmp_path: Path) -> None:
    """It times with a mask of its own, and nobody knows the function of scores."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda _b, _h, q, k: q >= k, None, None, 256, 256, device="cpu")
    inputs = [torch.zeros(1, 2, 256, 64)] * 3
    heard: list[Measurement] = []
    for given in (mask, None):
        torch._dynamo.reset()
        with triton_choices_on_cpu(), flex_on_cpu(), AutotuningListener(heard.append), torch.no_grad():
            torch.compile(
                lambda *qkv, given=given: flex_attention(*qkv, block_mask=given), mode="max-autotune-no-cudagraphs"
            )(*inputs)
    assert [each.problem.op for each in heard] == ["flex_attention"] * 2
    assert [dict(each.problem.scalars) for each in heard] == [{"mask": "other"}, {}]
    assert [each.flags for each in heard] == [(STAND_IN_MASK,)] * 2


@pytest.mark.skipif(triton.__version__ < "3.7", reason="this Triton's interpreter fails with NumPy from 2.4 on")
@pytest.mark.parametrize(
    "texts",
    [
        ["flex_attention:1x2x128x16/fp16/causal", "flex_decoding:1x4x2x16:2x256/fp16/causal"],
        pytest.param(
            [
                "flex_attention:1x4x256x32:2x256/tt/fp16/window60",
                "flex_attention:1x2x200x16/fp16",
                "flex_attention:1x2x256x16/fp16/documents100",
                "flex_attention:1x2x128x16:2x256/fp16/prefix150",
                "flex_decoding:1x2x1x16:2x256/fp16",
                "flex_attention_backward:1x2x128x16/fp16/causal",
                "flex_attention_backward:1x4x128x16:2x128/tt/fp16/window50",
            ],
            marks=pytest.mark.long,
        ),
    ],
)
def test_kernels_compute_what_is_expected(texts: list[str]) -> None:
    """Inductor's real kernels over the sweep's mask agree with the reference, whatever the config."""
    program = Path(__file__).with_name("interpreted_attention.py")
    folders = os.pathsep.join(map(str, (*program.parents[:3], *sys.path)))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    done = subprocess.run(
        [sys.executable, program, *texts], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert outcomes.keys() == set(texts)
    assert {outcome for each in outcomes.values() for outcome in each} == {"ok"}


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    """The kernels of this sweep write nothing at all."""
    problem = parse_problem("flex_attention:1x2x256x64/causal")
    with flex_on_cpu(), scripted(tmp_path, lambda choice: Kernel(choice.name, 10.0)) as (measuring, _):
        found = measuring.measure(problem).measurement
    assert found is not None
    assert {timing.outcome for timing in found.timings} == {Outcome.WRONG_RESULT}
