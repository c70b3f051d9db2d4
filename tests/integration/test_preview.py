"""What the hook would choose for products on a device that is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from hooked import watching
from torch._dynamo.utils import counters

from diode_collectors.problems.problem import parse_problem
from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor import entry
from diode_integration.install import install
from diode_integration.preview import Preview, Previewer
from diode_store.devices.known import known_device
from diode_store.errors import ModelError
from inductor_harness import compile_and_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_store.records import Hardware

SHAPES = (
    "mm:16x4096x4096/nt/bf16",
    "addmm:512x768x1024/nt/fp16",
    "bmm:128x128x64:16/nt/bf16",
    "baddbmm:64x64x64:8/nn/bf16",
    "mm:300x200x104/nn/fp32",
    "mm:300x200x104/nn/tf32",
)


def device(name: str = "h200") -> Hardware:
    """Return a known device."""
    found = known_device(name)
    assert found is not None
    return found


def previews(shapes: Sequence[str], hardware: str = "h200", **options: Any) -> list[Preview]:
    """Return what would become of products."""
    return list(Previewer(device(hardware), **options).previews([parse_problem(each).problem() for each in shapes]))


@pytest.mark.long
def test_every_op_and_dtype() -> None:
    """The model decides each; what it ranks is in the order of the predictions, and nothing is benchmarked."""
    counters.clear()
    before = torch.backends.cuda.matmul.allow_tf32
    found = previews(SHAPES, top=5)
    assert [each.problem for each in found] == [parse_problem(shape).problem() for shape in SHAPES]
    for each in found:
        assert each.decision is not None
        assert each.decision.decided_by is DecidedBy.MODEL
        assert each.decision.problem == each.problem
        times = [choice.predicted_us for choice in each.ranked]
        assert times == sorted(times)
        assert 5 <= len(times) <= 5 + len(each.decision.chosen)
        assert any(choice.config.is_vendor for choice in each.ranked)
        assert each.decision.chosen[0] == each.ranked[0]
    in_fp32, in_tf32 = found[-2:]
    assert in_fp32.ranked[0].predicted_us > in_tf32.ranked[0].predicted_us
    assert counters["inductor"]["select_algorithm_autotune"] == 0
    assert torch.backends.cuda.matmul.allow_tf32 is before


def test_it_is_what_the_hook_chooses() -> None:
    """In a compile, of the candidates of a GPU, zero mode keeps what was said."""
    (found,) = previews(["mm:64x96x128/nn/fp32"], mode="zero")
    handler = DiodeInductorChoices(hardware="NVIDIA H200", mode="zero", picks="", spool="")
    with watching(run_vendor=True) as watch, install(handler):
        entry.ensure_registered()
        compile_and_run(torch.mm, torch.zeros(64, 128), torch.zeros(128, 96))
    (decision,) = handler.decisions()
    assert found.decision is not None
    assert found.decision.chosen == decision.chosen
    assert found.decision.vendor_us == decision.vendor_us
    assert [len(left) for left in watch.left] == [1]


@pytest.mark.parametrize("shape", ["mm:1x1x512", "mm:1x64x1", "addmm:1x1x64", "addmm:1x16x16"])
def test_small_products_are_products_on_a_gpu(shape: str) -> None:
    """Where Inductor makes something else of them on a CPU."""
    (found,) = previews([shape])
    assert found.decision is not None
    assert found.decision.problem is not None
    assert found.decision.problem.shape == found.problem.shape


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", ["mm:64x64x1", "addmm:64x64x1", "bmm:64x64x1:4", "bmm:1x64x1:4"])
def test_columns_by_rows_are_no_product(shape: str) -> None:
    """Inductor multiplies element by element on a GPU; others in the same graph are asked about as ever."""
    found = previews(["mm:64x64x64", shape, "mm:32x32x32"])
    assert [each.decision is None for each in found] == [False, True, False]
    assert found[1].reason == "Inductor multiplies element by element"


@pytest.mark.long
def test_a_batch_of_vectors_cannot_be_asked_about() -> None:
    """On a CPU, which is what compiles here, Inductor makes sums of it; that is said."""
    (found,) = previews(["bmm:1x64x128:4"])
    assert found.decision is None
    assert found.reason == "Inductor lists the kernels of a batch of vectors on a GPU only"


def test_a_bias_that_is_broadcast() -> None:
    """The problem that Inductor lowers has another key where N is 1; it is the same product."""
    (found,) = previews(["addmm:64x1x64"])
    assert found.decision is not None
    assert found.decision.problem is not None
    assert found.decision.problem.key != found.problem.key
    assert found.decision.problem.shape == found.problem.shape
    assert found.decision.decided_by is DecidedBy.MODEL


@pytest.mark.parametrize(
    ("shape", "hardware", "options", "chooser"),
    [
        ("mm:64x64x64/tt/bf16", "h200", {}, DecidedBy.VENDOR),
        ("mm:4096x4096x4096/tt/bf16", "h200", {}, DecidedBy.STOCK),
        ("mm:4096x4096x4096/tt/bf16", "h200", {"mode": "zero"}, DecidedBy.VENDOR),
        ("mm:64x64x64/nn/bf16", "a10g", {}, DecidedBy.STOCK),
        ("mm:64x64x64/nn/bf16", "a10g", {"unknown": "vendor"}, DecidedBy.VENDOR),
    ],
)
def test_who_chooses_where_the_model_abstains(
    shape: str, hardware: str, options: dict[str, str], chooser: DecidedBy
) -> None:
    """As ``unknown`` says, and why; nothing is ranked."""
    (found,) = previews([shape], hardware, **options)
    assert found.decision is not None
    assert found.decision.reason.startswith(("layout: ", "hardware: "))
    assert (found.decision.decided_by, found.ranked) == (chooser, ())
    assert ("; " in found.decision.reason) == (chooser is DecidedBy.VENDOR)


def test_a_hook_that_fails_says_so() -> None:
    """An error of the hook's is not taken for a product that Inductor does not make."""
    with (
        mock.patch.object(DiodeInductorChoices, "_rank", side_effect=ZeroDivisionError("a bug")),
        pytest.raises(ModelError, match=r"^mm cannot be ranked: error: ZeroDivisionError: a bug; run `diode doctor`"),
    ):
        previews(["mm:64x64x64"])


def test_what_is_kept_is_listed() -> None:
    """Whatever its rank, with the vendor's best: only of the first so many the rank is known."""
    (found,) = previews(["mm:64x64x64/nn/bf16"], mode="top_k", top=1)
    assert found.decision is not None
    assert set(found.decision.chosen) <= set(found.ranked)
    assert len(found.decision.chosen) > 1
    assert found.top == 1


@pytest.mark.long
def test_the_fastest_are_listed_whatever_goes_together() -> None:
    """Top-k mode keeps some of the ten predicted fastest and passes others over; the list has all ten."""
    shapes = [f"mm:333x80x{k}/nt/bf16" for k in range(512, 2048, 128)]
    passed_over = []
    for found, longer in zip(
        previews(shapes, mode="top_k", top=10), previews(shapes, mode="zero", top=20), strict=True
    ):
        assert found.decision is not None
        assert found.ranked[:10] == longer.ranked[:10]
        kept = [choice for choice in found.decision.chosen if not choice.config.is_vendor]
        assert len(kept) == 3
        passed_over.append(list(found.ranked[:3]) != kept)
    assert any(passed_over)


@pytest.mark.parametrize("shape", ["addmm:7x256x319/nt/bf16", "mm:128x304x16/nn/fp16"])
def test_a_kernel_is_listed_once(shape: str) -> None:
    """Where the loop over K is not pipelined, however many numbers of stages Inductor lists."""
    (found,) = previews([shape], mode="zero", top=10)
    templates = [choice.config for choice in found.ranked if not choice.config.is_vendor]
    assert len(templates) >= 9
    assert len({replace(config, num_stages=1) for config in templates}) == len(templates)


@pytest.mark.long
def test_more_products_than_one_graph_has() -> None:
    """They come in the order in which they were asked about."""
    shapes = [f"mm:{8 * number}x64x64/nn/bf16" for number in range(1, 71)]
    found = previews(shapes, top=1)
    assert [each.decision and each.decision.problem for each in found] == [parse_problem(s).problem() for s in shapes]


def test_no_record_and_no_pick_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the model that is asked about, and what is asked is no decision of a compile."""
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DIODE_PICKS", str(tmp_path / "no-such-file.json"))
    (found,) = previews(SHAPES[:1])
    assert found.decision is not None
    assert not (tmp_path / "spool").exists()
