"""Who chooses where the model is not believed: the vendor's kernel alone, or stock Inductor."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import OPS, benchmarks, compile_op, each_op, each_path, hooked, watching
from torch._inductor import config as inductor_config
from torch._inductor.utils import run_and_get_code

from diode_collectors.inductor import indexing
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_integration.decide.abstention import Unknown, parse_unknown, why_vendor
from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor import entry, unranked
from diode_integration.inductor.listing import VendorCalls
from diode_integration.install import install
from diode_store.errors import SettingsError
from diode_trainer.policy import Mode
from inductor_harness import compile_and_run
from stand_ins import DOMAIN, H200, BrokenModel, TileModel, card_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hooked import Watch

    from diode_integration.choices import DiodeInductorChoices


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    entry.unregister()


def outside(**options: str) -> DiodeInductorChoices:
    """Return a handler whose model knows no product of these tests."""
    return hooked(TileModel(card=card_of(replace(DOMAIN, dtypes=("float16",)))), **options)


@each_op
@each_path
def test_zero_mode_benchmarks_nothing_outside_the_domain(op: str, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """One of the vendor's kernels is left, and counted apart from what the model decides."""
    handler = outside(mode="zero")
    watch = compile_op(op, handler, deferred=deferred)
    assert [len(left) for left in watch.left] == [1]
    assert watch.left[0][0] in {op, f"bias_{op}"}
    assert (watch.timed, benchmarks()) == ([], 0)
    stats = handler.get_stats()
    assert (stats["unknown_vendor"], stats["unknown_stock"], stats["model_selections"]) == (1, 0, 0)
    (decision,) = handler.decisions()
    assert (decision.decided_by, decision.abstained, decision.chosen) == (DecidedBy.VENDOR, True, ())
    assert ": the vendor kernel is kept alone (dtype: the model knows float16, not float32;" in decision.describe()


def test_the_vendors_kernel_that_adds_the_bias_is_taken() -> None:
    """Where Inductor offers two for an addmm, that with the bias in its epilogue is kept."""
    handler = outside(unknown="vendor")
    bias, shapes = torch.randn(256).expand(128, 256), OPS["addmm"][1][1:]
    inputs = [torch.randn(shape) for shape in shapes]
    with watching() as watch, install(handler):
        compile_and_run(torch.addmm, bias, *inputs)
    assert watch.left == [["bias_addmm"]]


def test_an_earlier_graph_says_nothing_of_this_one() -> None:
    """Nodes of two graphs have the same names; where Inductor then offers no vendor's kernel, its list stays."""
    calls = VendorCalls()
    assert calls.kept(offer("addmm", ["aten::addmm"])) == ["aten::addmm"]
    with inductor_config.patch(max_autotune_gemm=True, max_autotune_gemm_backends="TRITON"):
        assert calls.kept(offer("addmm", ["triton::mm"])) is None
    assert calls.kept(offer("addmm", ["triton::mm"])) == []
    calls.calls.forget()
    assert calls.kept(offer("addmm", ["triton::mm"])) is None


@each_op
def test_templates_are_not_even_listed(op: str) -> None:
    """What is not going to be chosen costs no code generation."""
    watch = compile_op(op, outside(mode="zero"))
    assert [name for name in watch.offered[0] if name.startswith("triton")] == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["zero", "top_k", "adaptive"])
def test_stock_on_request(mode: str) -> None:
    """Inductor's whole list stays, in each mode."""
    handler = outside(mode=mode, unknown="stock")
    assert compile_op("mm", handler).left == compile_op("mm", None).left
    assert (handler.get_stats()["unknown_stock"], handler.get_stats()["unknown_vendor"]) == (1, 0)
    assert handler.decisions()[0].describe().endswith("left to Inductor (dtype: the model knows float16, not float32)")


def test_auto_keeps_the_vendors_kernel_of_tiny_products() -> None:
    """It is the default of top-k mode: there is little to win in 128 x 512 x 256."""
    handler = outside(mode="top_k")
    assert handler.unknown is Unknown.AUTO
    assert compile_op("mm", handler).left == [["mm"]]
    assert handler.decisions()[0].reason.endswith("; it takes hardly longer than a launch")


def test_errors_leave_stock_even_where_the_vendor_is_asked_for() -> None:
    """A bug in the hook is no reason to choose anything."""
    handler = hooked(BrokenModel(), mode="zero")
    assert compile_op("mm", handler).left == compile_op("mm", None).left
    assert handler.get_stats()["unknown_stock"] == 1


def offer(op: str, templates: list[str], names: tuple[str, ...] = ("a", "b")) -> Any:
    """Return a call that offers one choice of each template, called as the template is."""
    nodes = [SimpleNamespace(get_name=lambda name=name: name) for name in names]
    return SimpleNamespace(
        op_name=op,
        generators=dict.fromkeys(templates),
        vendors=lambda: [uid for uid in templates if uid.startswith("aten::")],
        kernel_inputs=SimpleNamespace(nodes=lambda: nodes),
    )


def test_an_op_with_a_vendors_kernel_in_an_earlier_call_needs_no_other() -> None:
    """Torch 2.13 lists an addmm's vendor kernels, its contiguous variant and its templates in calls of their own."""
    calls = VendorCalls()
    assert calls.kept(offer("addmm", ["triton::mm"])) is None
    assert calls.kept(offer("addmm", ["aten::addmm", "aten::bias_addmm"])) == ["aten::addmm", "aten::bias_addmm"]
    assert calls.kept(offer("addmm", ["triton::mm"], ("another bias", "a", "b"))) == []
    assert calls.kept(offer("addmm", ["triton::mm"], ("a", "c"))) is None
    assert calls.kept(offer("mm", ["triton::mm"])) is None
    assert calls.kept(offer("scaled_mm", ["aten::scaled_mm", "triton::mm"])) == ["aten::scaled_mm"]
    assert calls.kept(offer("scaled_mm", ["triton::mm"])) is None  # whose calls are not known


def test_what_was_kept_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The log says that it was the vendor's kernel, not that stock Inductor chose."""
    handler = outside(mode="zero")
    with caplog.at_level(logging.INFO, "diode_integration"):
        compile_op("mm", handler)
        compile_op("bmm", handler)
    lines = [record.getMessage() for record in caplog.records if record.name == "diode_integration"]
    assert lines == ["the vendor kernel is kept: dtype: the model knows float16, not float32 (logged once)"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"mode": "zero"}, {"mode": "top_k", "unknown": "stock"}], ids=str)
def test_a_kernel_that_would_read_other_memory_is_not_chosen(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's kernel is kept for a product that the model knows, whatever is set; to observe changes nothing."""
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: True)
    assert compile_op("mm", hooked(TileModel(vendor_us=30.0), **options)).left != [["mm"]]
    monkeypatch.setattr(indexing, "MOST_INDEXED", 2**16)
    handler = hooked(TileModel(vendor_us=30.0), **options)
    assert compile_op("mm", handler).left == [["mm"]]
    assert handler.get_stats()["fallback_overflow"] == 1
    assert handler.decisions()[0].reason.endswith("outside the matrices; it is sure to run")
    observer = hooked(TileModel(vendor_us=30.0), observe=True, **options)
    assert compile_op("mm", observer).left == compile_op("mm", None).left


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ("mm:64x1x16/nn/fp32", "it takes hardly longer than a launch"),
        ("mm:16x1024x1024/nt/bf16", "it takes hardly longer than a launch"),
        ("bmm:128x128x64:512/nn/fp32", "float32 kernels without TF32 take long to compile and seldom win"),
        ("mm:4096x4096x4096/nt/fp32", "float32 kernels without TF32 take long to compile and seldom win"),
        ("mm:4096x4096x4096/nt/tf32", None),
        ("mm:4096x4096x4096/nt/bf16", None),
    ],
)
def test_auto_weighs_what_could_be_won(shape: str, why: str | None) -> None:
    """Tiny products and fp32 without TF32 get the vendor's kernel; what may gain from tuning is tuned."""
    problem = parse_problem(shape).problem()
    assert why_vendor(Unknown.AUTO, "dtype", problem, H200) == why
    assert why_vendor(Unknown.STOCK, "dtype", problem, H200) is None
    assert why_vendor(Unknown.VENDOR, "dtype", problem, H200) == "nothing else is asked for"


@pytest.mark.parametrize("reason", ["hardware", "no_model", "multi_kernel"])
def test_auto_leaves_unknown_devices_to_stock(reason: str) -> None:
    """That a device is unknown says nothing of what could be won."""
    problem = parse_problem("mm:64x1x16/nn/fp32").problem()
    assert why_vendor(Unknown.AUTO, reason, problem, H200) is None
    assert why_vendor(Unknown.AUTO, "op", None, H200) is None
    assert why_vendor(Unknown.AUTO, "dtype", problem, None) is None


def test_each_mode_has_its_default() -> None:
    """Zero mode benchmarks nothing at all; the others weigh."""
    assert {mode: parse_unknown(None, mode) for mode in Mode} == {
        Mode.ZERO: Unknown.VENDOR,
        Mode.TOP_K: Unknown.AUTO,
        Mode.ADAPTIVE: Unknown.AUTO,
    }


def test_unknown_values_are_refused() -> None:
    """The message names what there is."""
    with pytest.raises(SettingsError, match="unknown must be one of vendor, stock, auto, not 'cublas'"):
        outside(unknown="cublas")


def test_the_setting_is_part_of_the_cache_key() -> None:
    """A compile with another setting must not find what this one chose."""
    keys = {outside(unknown=unknown).uuid() for unknown in Unknown}
    assert len(keys) == len(Unknown)


def convolved(handler: DiodeInductorChoices | None, kernel: int = 3) -> tuple[Watch, str]:
    """Compile a convolution, channels last if it is of 1 x 1; return what was selected among, and Inductor's code."""
    layout = torch.channels_last if kernel == 1 else torch.contiguous_format
    image, weight = torch.randn(2, 16, 32, 32), torch.randn(32, 16, kernel, kernel)
    image, weight = image.to(memory_format=layout), weight.to(memory_format=layout)

    def convolve(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(image, weight, padding=kernel // 2)

    with (
        watching(max_autotune_conv_backends="ATEN,TRITON", layout_optimization=False) as watch,
        install(handler) if handler else nullcontext(),
    ):
        result, (code,) = run_and_get_code(compile_and_run, convolve, image, weight)
    torch.testing.assert_close(result, convolve(image, weight), rtol=1e-4, atol=1e-3)
    return watch, code


def test_zero_mode_keeps_the_vendors_convolution() -> None:
    """No template of a convolution is listed; with "stock", and on an unknown device, Inductor tunes them."""
    (stock,) = convolved(None)[0].left
    assert len(stock) > 1
    handler = hooked(mode="zero")
    watch, code = convolved(handler)
    assert (watch.left, watch.timed) == ([["convolution"]], [])
    assert "extern_kernels.convolution" in code
    assert handler.get_stats()["unknown_vendor"] == 1
    (decision,) = handler.decisions()
    assert handler.get_stats()["fallback_dtype"] == 1
    assert decision.decided_by is DecidedBy.VENDOR
    assert decision.device is not None
    assert decision.hardware == decision.device.name
    assert decision.problem is not None
    of_shape = SweepProblem.of_shape(decision.problem.shape)
    assert str(of_shape) == "convolution:2x16x32x32:32x3x3/tt/tf32/padding1"
    stocks = hooked(mode="zero", unknown="stock"), hooked(hardware="a10g"), hooked(mode="zero", observe=True)
    for handler in stocks:
        (left,) = convolved(handler)[0].left
        assert len(left) == len(stock)  # Inductor numbers the templates' names
        assert handler.get_stats()["unknown_vendor"] == 0


def test_no_mode_tunes_convolutions_on_a_gpu_that_a_model_knows() -> None:
    """Inductor's benchmark chooses slower ones than the library does; on a CPU nothing says so."""
    handler = hooked()
    assert convolved(handler)[0].timed == []
    (decision,) = handler.decisions()
    assert decision.reason.endswith(unranked.SELDOM_WINS)
    on_cpu = hooked(TileModel(card=card_of(DOMAIN)), hardware=None)
    assert len(convolved(on_cpu)[0].left[0]) > 1


def test_a_convolution_of_1x1_stays_one() -> None:
    """With max-autotune Inductor makes a matrix product of it; zero mode leaves the library its own."""
    assert "extern_kernels.convolution" not in convolved(None, 1)[1]
    handler = hooked(mode="zero")
    assert "extern_kernels.convolution" in convolved(handler, 1)[1]
    assert [decision.op for decision in handler.decisions()] == ["convolution"]


def test_convolutions_are_stock_inductors_after_the_uninstall() -> None:
    """The lowerings that were wrapped are those of before."""
    lowerings = torch._inductor.lowering.lowerings
    before = dict(lowerings)
    with install(hooked(mode="zero")):
        changed = {op for op, lowering in lowerings.items() if lowering is not before[op]}
        assert torch.ops.aten.convolution.default in changed
        grouped = {torch.ops.aten._grouped_mm.default, torch.ops.aten._scaled_grouped_mm.default}
        flex = {torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward}
        assert changed == {op for _, op in unranked.lowered_ops(before)} | grouped | flex
    assert lowerings == before


def test_without_the_vendors_there_is_nothing_to_keep() -> None:
    """Where Inductor is told to take templates only, it does."""
    handler = hooked(mode="zero")
    with inductor_config.patch(max_autotune_gemm=True, max_autotune_conv_backends="TRITON"):
        assert handler.why_untuned(CPU) is None
    with inductor_config.patch(max_autotune_gemm=True, max_autotune_conv_backends="ATEN,TRITON"):
        assert handler.why_untuned(CPU) is not None
    assert handler.why_untuned(CPU) is None  # no max-autotune is asked for
