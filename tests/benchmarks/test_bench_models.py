from __future__ import annotations

import json
import math
import sys
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import bench_models_gpu
import pytest
import torch
import whole_models
from attention_models import FlexDecoder, causal_mask
from low_precision_models import Sizes
from model_cases import CASES, shard
from model_tables import Ratio, report
from vision_models import UNet

if TYPE_CHECKING:
    from pathlib import Path

WHERE = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "triton": "3.6.0", "driver": "570", "date": "2026-11-27"}
ROUNDS = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.0, 1.0]


def line(model: str, repeat: int = 1, **ways: tuple[float, float, int]) -> dict[str, Any]:
    """Return a result: for each way the first call's seconds, a call's milliseconds, and the kernels benchmarked."""
    found = {
        way: {
            "first_call_s": seconds,
            "call_ms": call_ms,
            "rounds_ms": [call_ms * noise for noise in ROUNDS],
            "kernels_benchmarked": kernels,
            "benchmarked": {"triton_mm": kernels},
            "max_relative_error": 0.01,
        }
        for way, (seconds, call_ms, kernels) in ways.items()
    }
    return {"model": model, "repeat": repeat, **WHERE, "ways": found}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands of the processes that a run begins; each leaves a result as a real one would."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        output, repeat = (command[command.index(option) + 1] for option in ("--output", "--repeat"))
        with open(output, "a") as file:  # noqa: PTH123 - a path as the process gets it
            file.write(json.dumps(line(command[2], int(repeat), plain=(1, 1, 0))) + "\n")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(bench_models_gpu.subprocess, "run", run)
    return commands


def test_every_model_has_a_title_and_a_cost() -> None:
    """Tables and shards know exactly the models that can be built."""
    assert list(CASES) == list(whole_models.WORKLOADS)


def test_a_run_starts_one_process_a_model_with_plain_first(begun: list[list[str]], tmp_path: Path) -> None:
    """Ways come in the order asked for, behind plain, which all are compared with."""
    output = tmp_path / "models.jsonl"
    assert bench_models_gpu.main(["--output", str(output), "--model", "dlrm,swin-b", "--way", "zero,plain"]) == 0
    assert [command[2] for command in begun] == ["dlrm", "swin-b"]
    assert all(command[0] == sys.executable and command[4] == "plain,zero" for command in begun)
    assert all(command[-1] == "--warm-up" for command in begun)


def test_a_run_skips_what_is_there_and_measures_again_once(begun: list[list[str]], tmp_path: Path) -> None:
    """A model is measured once, and with --again once more, however often the commands are run."""
    common = ["--output", str(tmp_path / "models.jsonl"), "--model", "dlrm,swin-b"]
    for more in ([], [], ["--again", "--model", "dlrm"], ["--again", "--model", "dlrm"]):
        assert bench_models_gpu.main([*common, *more]) == 0
    assert [(command[2], command[command.index("--repeat") + 1]) for command in begun] == [
        ("dlrm", "1"),
        ("swin-b", "1"),
        ("dlrm", "2"),
    ]


def test_a_run_skips_what_another_file_holds(begun: list[list[str]], tmp_path: Path) -> None:
    """Results of an earlier machine count when they are named."""
    seen = tmp_path / "earlier.jsonl"
    seen.write_text(json.dumps(line("dlrm", plain=(1, 1, 0))) + "\n")
    bench_models_gpu.main(["--output", str(tmp_path / "new.jsonl"), "--seen", str(seen), "--model", "dlrm,swin-b"])
    assert [command[2] for command in begun] == ["swin-b"]


def test_no_model_is_begun_after_the_time_limit(
    begun: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is out of time names what it leaves."""
    bench_models_gpu.main(["--output", str(tmp_path / "o.jsonl"), "--model", "dlrm,swin-b", "--time-limit", "-1"])
    assert begun == []
    assert "time limit; not begun: dlrm, swin-b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "o", "--model", "gpt5"], "unknown: gpt5"),
        (["--output", "o", "--way", "plain,fast"], "unknown: fast"),
        (["--output", "o", "--shard", "5/4"], "'5/4' is not I/N"),
        ([], "--output is needed, or --print"),
    ],
)
def test_bad_options_are_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that cannot be used ends the run before a model begins."""
    with pytest.raises(SystemExit):
        bench_models_gpu.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("shards", [1, 2, 4, 8])
def test_shards_hold_each_model_once_and_cost_alike(shards: int) -> None:
    """No shard takes longer than the mean and half of the longest model."""
    parts = [shard(list(CASES), number, shards) for number in range(1, shards + 1)]
    assert sorted(chain(*parts)) == sorted(CASES)
    costs = [sum(CASES[name].cost_s for name in part) for part in parts]
    assert max(costs) <= sum(costs) / shards + max(case.cost_s for case in CASES.values()) / 2


def test_a_ratio_of_rounds_has_the_interval_of_students_t() -> None:
    """Rounds are paired, so that noise which both share does not widen the interval."""
    base = [1.0, 2.0, 1.5, 3.0]
    noise = [0.01, -0.01, 0.02, 0.0]
    ratio = Ratio.of_rounds([ms * 0.9 * math.exp(e) for ms, e in zip(base, noise, strict=True)], base)
    assert ratio.value == pytest.approx(0.9 * math.exp(0.005))
    half = 3.18 * 0.0129099 / 2  # t of three degrees of freedom, standard deviation, root of four rounds
    low, high = ratio.interval
    assert (low, high) == pytest.approx((ratio.value * math.exp(-half), ratio.value * math.exp(half)), rel=1e-5)


def test_totals_are_of_each_models_first_result() -> None:
    """Seconds below plain's count as zero, a second measurement counts nowhere, and all devices have their own."""
    results = [
        line("dlrm", plain=(10, 1, 0), stock=(50, 1.1, 400), zero=(9, 0.96, 0)),
        line("dlrm", 2, plain=(10, 1, 0), stock=(90, 1.1, 400), zero=(30, 2, 0)),
        line("swin-b", plain=(10, 2, 0), stock=(70, 2.2, 500), zero=(15, 2.02, 7)),
    ]
    text = report([*results, {**line("dlrm", plain=(1, 1, 0), zero=(2, 0.5, 0)), "device": "NVIDIA H200"}])
    h100, h200 = text.split("NVIDIA H200")
    assert "| zero | 5.0 | 0.050 | 24 | 0.985 (0.985 to 0.985) | 1.010 (1.010 to 1.010): swin-b | 7 |" in h100
    assert "| stock `max_autotune_gemm` | 100.0 |  | 120 | 1.100" in h100
    assert "- zero, calls above 1.005 of plain's: swin-b 1.010" in h100
    assert "- swin-b, zero, benchmarked: {'triton_mm': 7}" in h100
    assert "Measured again: dlrm" in h100
    assert "| DLRM, batch of 2048, fp32 with TF32 | 2 | 10.0; 1.000 | +80.0; 1.100" in h100
    assert "| zero | 1.0 |  | 2 | 0.500" in h200


def test_a_way_that_failed_is_told_and_counts_nowhere() -> None:
    """A failure costs a cell of the table."""
    result = line("dlrm", plain=(10, 1, 0), zero=(11, 0.9, 0))
    result["ways"]["stock"] = {"failed": "OutOfMemoryError: no"}
    text = report([result])
    assert "| DLRM, batch of 2048, fp32 with TF32 | 10.0; 1.000 | failed | +1.0; 0.900" in text
    assert "- dlrm, stock, failed: OutOfMemoryError: no" in text


def test_print_reads_files_and_runs_nothing(
    begun: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of several shards make one table."""
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, model in zip(files, ("dlrm", "swin-b"), strict=True):
        file.write_text(json.dumps(line(model, plain=(10, 1, 0), zero=(11, 0.9, 0))) + "\n")
    assert bench_models_gpu.main(["--print", *map(str, files)]) == 0
    assert "models: 2" in capsys.readouterr().out
    assert begun == []


def test_a_recommender_scores_each_user_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's scores depend on its numbers and on its categories, and it is compiled as one graph."""
    monkeypatch.setattr(whole_models, "DEVICE", "cpu")
    workload = whole_models.recommender(batch=8, rows=100)
    dense, sparse = workload.inputs
    with torch.no_grad():
        scores = workload.run(workload.call)
        assert scores.shape == (8, 1)
        assert not torch.equal(workload.call(dense + 1, sparse), scores)
        assert not torch.equal(workload.call(dense, (sparse + 1) % 100), scores)
        assert torch.allclose(workload.run(torch.compile(workload.call, backend="eager", fullgraph=True)), scores)


SMALL = Sizes(hidden=64, heads=4, kv_heads=2, head_size=16, intermediate=96)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_generation_looks_at_the_whole_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step writes its own position, reads the others, and is compiled as one graph."""
    monkeypatch.setattr(whole_models, "DEVICE", "cpu")
    workload = whole_models.flex_decoding(SMALL, batch=2, cached=160)
    model: Any = workload.call
    with torch.no_grad():
        result = workload.run(model)
        assert result.shape == (2, 1, 64)
        written = model.cache[:, :, :, :, -1].clone()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(workload.run(compiled), result)
        model.cache[1, 0, :, :, 5] += 10
        assert not torch.allclose(workload.run(model), result)
        assert torch.equal(model.cache[:, 0, :, :, -1], written[:, 0])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_training_step_of_flex_attention_is_causal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position's output depends on those before it alone."""
    monkeypatch.setattr(whole_models, "DEVICE", "cpu")
    model = FlexDecoder(SMALL, 1)
    mask = causal_mask(48, "cpu")
    states = torch.randn(1, 48, 64)
    with torch.no_grad():
        before = model(states, mask)
        states[:, 30] += 1
        after = model(states, mask)
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.allclose(before[:, 40], after[:, 40])
    assert len(whole_models.flex_training(SMALL, 32).parameters) == 4


def test_a_u_net_keeps_the_resolution() -> None:
    """Channels and sizes of the latents come out again, and what is skipped matters."""
    torch.manual_seed(0)
    model, latents = UNet(4, (32, 64)), torch.randn(1, 4, 16, 16)
    with torch.no_grad():
        assert model(latents).shape == latents.shape
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(latents), model(latents))
