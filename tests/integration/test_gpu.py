"""The hook on a real GPU: kernels that it chose are built, run and right."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import benchmarks
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor.utils import fresh_cache

from diode_collectors.feedback.listening import AutotuningListener
from diode_integration.choices import DiodeInductorChoices
from diode_integration.install import install
from diode_integration.record.report import make_report
from diode_store.records import GRAPH, TimingMethod
from inductor_harness import quiet_torch
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from diode_store.records import Measurement

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

OPS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((256, 512), (512, 384))),
    "addmm": (torch.addmm, ((384,), (256, 512), (512, 384))),
    "bmm": (torch.bmm, ((4, 256, 512), (4, 512, 384))),
}
each_op = pytest.mark.parametrize("op", list(OPS))


def handler(vendor_us: float = 20.5, **options: Any) -> DiodeInductorChoices:
    """Return a handler whose model knows every device and predicts a template to win."""
    tile = {"favourite": options.pop("favourite")} if "favourite" in options else {}
    card = card_of(replace(DOMAIN, hardware=()))
    return DiodeInductorChoices(model=TileModel(vendor_us=vendor_us, card=card, **tile), **options)


@contextmanager
def hooked_gpu(**options: Any) -> Iterator[DiodeInductorChoices]:
    """Install a handler over empty caches."""
    with quiet_torch(), fresh_cache(), install(handler(**options)) as installed:
        torch._dynamo.reset()
        counters.clear()
        yield installed


def compiled(op: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what an op gives compiled, and eagerly."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    with torch.no_grad():
        return torch.compile(function, mode="max-autotune-no-cudagraphs")(*inputs), function(*inputs)


@each_op
def test_top_k_is_benchmarked_and_right(op: str) -> None:
    """Three templates and the vendor kernel are timed once on the device, and the result is right."""
    with hooked_gpu() as installed:
        torch.testing.assert_close(*compiled(op), rtol=2e-2, atol=2e-1)
        assert benchmarks() == 1
    (decision,) = installed.decisions()
    assert decision.candidates > 1000
    assert len(decision.chosen) == 4


@each_op
def test_zero_mode_runs_the_chosen_template(op: str) -> None:
    """In zero mode the one chosen template is built and run without any benchmark, and the result is right."""
    with hooked_gpu(mode="zero") as installed:
        torch.testing.assert_close(*compiled(op), rtol=2e-2, atol=2e-1)
        assert benchmarks() == 0
    (decision,) = installed.decisions()
    assert decision.chosen[0].config.template.startswith("triton::")


@each_op
@pytest.mark.parametrize("mode", ["zero", "top_k"])
def test_a_kernel_too_large_for_the_device_fails_no_compile(op: str, mode: str) -> None:
    """A tile that needs more shared memory than there is cannot be loaded; the vendor's kernel takes over."""
    with hooked_gpu(mode=mode, vendor_us=1000.0, favourite=(256, 256, 256)) as installed:
        torch.testing.assert_close(*compiled(op), rtol=2e-2, atol=2e-1)
    stats = installed.get_stats()
    assert stats["model_selections"] == 1
    assert stats["failed_graphs"] == (mode == "zero")


def test_zero_mode_runs_a_template_with_what_follows() -> None:
    """A template that wins only with what is fused into it is taken, and the result is right."""
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    with hooked_gpu(mode="zero", vendor_us=19.5) as installed, torch.no_grad():
        fused = torch.compile(lambda a, b: torch.relu(a @ b), mode="max-autotune-no-cudagraphs")(a, b)
        torch.testing.assert_close(fused, torch.relu(a @ b), rtol=2e-2, atol=2e-1)
    (decision,) = installed.decisions()
    assert not decision.chosen[0].config.is_vendor
    assert counters["inductor"]["extern_calls"] == 0


@pytest.mark.parametrize("fusion", [True, False], ids=["deferred", "immediate"])
def test_candidates_are_timed_as_deployed(fusion: bool) -> None:  # noqa: FBT001 - a parameter
    """An addmm's candidates are timed in a graph, the record says so, and the result is right."""
    setting = "benchmark_template_fusion"
    name = setting if hasattr(inductor_config, setting) else "benchmark_epilogue_fusion"
    heard: list[Measurement] = []
    with inductor_config.patch({name: fusion}), hooked_gpu() as installed, AutotuningListener(heard.append):
        torch.testing.assert_close(*compiled("addmm"), rtol=2e-2, atol=2e-1)
    stats = installed.get_stats()
    assert (stats["clocked"], stats["clock_failures"]) == (1, 0)
    assert 0 < stats["seconds_clocked"] < 5
    (measurement,) = heard
    assert measurement.timing_method == TimingMethod("median", flush_l2=True, launch_hidden=True, regime=GRAPH)
    assert len(measurement.timings) == 4
    assert all(0.5 < (timing.runtime_us or 0) < 50 for timing in measurement.timings)


def test_inductors_clock_can_be_asked_for() -> None:
    """Then nothing is timed by the hook's."""
    with hooked_gpu(clock="inductor") as installed:
        torch.testing.assert_close(*compiled("mm"), rtol=2e-2, atol=2e-1)
    assert installed.get_stats()["clocked"] == 0


def test_the_clock_leaves_no_memory_behind() -> None:
    """Operands, graphs and the buffer that empties the cache are gone; a workspace of the library's may stay."""
    with hooked_gpu():
        compiled("mm")
        before = torch.cuda.memory_allocated()
        compiled("bmm")
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < 2**20


def test_the_report_of_a_compile() -> None:
    """It has a line for the op, with what is predicted, and seconds of each part that this torch times."""
    with hooked_gpu() as installed:
        compiled("mm")
        found = make_report(installed)
    (line,) = found.ops
    assert line.picked
    assert line.vendor_us == 20.5
    seconds = {part.name: part.seconds for part in found.parts}
    assert seconds["benchmarking GEMMs"] > 0
    assert found.total_s > seconds["listing candidates"] > 0


@pytest.mark.parametrize("rows", [2, 100, 1024])
def test_one_kernel_serves_a_stated_range(rows: int) -> None:
    """What was picked for a range of rows is right at its ends and between."""
    b = torch.randn(512, 384, device="cuda", dtype=torch.bfloat16)
    with hooked_gpu(mode="zero") as installed, torch.no_grad():
        product = torch.compile(torch.mm, mode="max-autotune-no-cudagraphs")
        for count in (64, rows):
            a = torch.randn(count, 512, device="cuda", dtype=torch.bfloat16)
            torch._dynamo.mark_dynamic(a, 0, min=2, max=1024)
            torch.testing.assert_close(product(a, b), a @ b, rtol=2e-2, atol=2e-1)
    (decision,) = installed.decisions()
    assert decision.reason.endswith("in 2 to 1,024")


def test_backward_in_autograds_thread_is_hooked() -> None:
    """Backward graphs, which autograd compiles in a thread of its own for each device, are hooked too."""
    with hooked_gpu() as installed:
        a = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        b = torch.randn(512, 384, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        torch.compile(lambda a, b: (a @ b).sum(), mode="max-autotune-no-cudagraphs")(a, b).backward()
    assert installed.get_stats()["model_selections"] == 3
