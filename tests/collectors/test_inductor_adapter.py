"""Inductor's objects as records, from real compiles on this CPU."""

from __future__ import annotations

import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.choices import InductorChoices
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V

from diode_collectors import device
from diode_collectors.inductor import (
    POLICY_ANNOTATION,
    columns_of_choices,
    config_of_choice,
    config_of_ktc,
    detect_environment,
    detect_hardware,
    problem_of_inputs,
    problem_of_nodes,
)
from diode_collectors.inductor_records import ReplayDetector, choice_policy, measurement_from_feedback
from diode_store.codec import decode, encode
from diode_store.columns import INT_COLUMNS, ConfigColumns
from diode_store.errors import RecordError
from diode_store.records import KernelConfig, Outcome, Source, TensorSpec, TimingMethod
from inductor_harness import compile_and_run, cuda_choices, quiet_torch, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A = torch.zeros(128, 512)
B = torch.zeros(512, 256)


class Observer(InductorChoices):
    """A choices handler that lists what stock Inductor lists, and lets a test look at each call."""

    def __init__(self, look: Callable[[Any, str, list[Any]], object]) -> None:
        """Call ``look(kernel_inputs, op_name, listed)``."""
        super().__init__()
        self.look = look

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        listed = super()._finalize_template_configs(
            template_choices, kernel_inputs, templates, op_name, *args, **kwargs
        )
        self.look(kernel_inputs, op_name, listed)
        return listed


@contextmanager
def saver(function: Callable[..., None]) -> Iterator[None]:
    """Have Inductor call ``function`` after each autotuning."""
    add_feedback_saver(function)
    try:
        yield
    finally:
        cache = get_algorithm_selector_cache()
        cache.feedback_saver_fns = [known for known in cache.feedback_saver_fns if known is not function]


def events(function: Callable[..., Any], *inputs: torch.Tensor, look: Any = None, **options: Any) -> list[Any]:
    """Compile ``function`` with fake Triton choices and return a measurement of each autotuning event."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        found.append(measurement_from_feedback(timings, name, nodes, choices))

    dynamic = options.pop("dynamic", None)
    with triton_choices_on_cpu(**options), saver(keep), V.set_choices_handler(Observer(look or (lambda *_: None))):
        compile_and_run(function, *inputs, dynamic=dynamic)
    return found


def asked(function: Callable[..., Any], *inputs: torch.Tensor, look: Callable[..., Any], **options: Any) -> list[Any]:
    """Compile ``function`` and return what ``look(kernel_inputs, op_name, listed)`` gave for each hook call."""
    seen: list[Any] = []
    events(function, *inputs, look=lambda *call: seen.append(look(*call)), **options)
    return seen


def problems(kernel_inputs: Any, op_name: str, _: Any) -> Any:
    """Return the problem of a hook call."""
    return problem_of_inputs(kernel_inputs, op_name)


def test_mm_event_becomes_a_measurement() -> None:
    """A compiled mm gives one record with its inputs, all its kernels and where it ran."""
    [measurement] = events(torch.mm, A, B)
    assert measurement.problem.op == "mm"
    assert measurement.problem.inputs == (
        TensorSpec("float32", (128, 512), (512, 1)),
        TensorSpec("float32", (512, 256), (256, 1)),
    )
    assert measurement.problem.scalars == ()
    assert measurement.source is Source.FEEDBACK
    assert measurement.search_space == "DEFAULT"
    assert measurement.choice_policy == "hook:Observer"
    assert measurement.hardware == detect_hardware("cpu")
    assert measurement.environment.key == detect_environment().key
    assert set(measurement.environment.template_hashes) == {"triton::mm"}
    assert measurement.timing_method == TimingMethod(statistic="median", flush_l2=False, launch_hidden=False)
    assert {timing.config.template for timing in measurement.timings} == {"aten::mm", "triton::mm"}
    assert decode(encode(measurement)) == measurement


def test_milliseconds_become_microseconds_once() -> None:
    """Inductor's 0.5 ms is 500 us."""
    [measurement] = events(torch.mm, A, B)
    vendor = [timing for timing in measurement.timings if timing.config.is_vendor]
    assert [timing.runtime_us for timing in vendor] == [500.0]
    triton = {timing.runtime_us for timing in measurement.timings if not timing.config.is_vendor}
    assert min(triton) == pytest.approx(1000.0, abs=0.1)


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 0.0, -1.0])
def test_what_is_no_time_is_a_failure(bad: float) -> None:
    """Infinity is how Inductor says that a choice failed; no such number leaves the adapter."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        spoiled = {choice: time if choice.name == "mm" else bad for choice, time in timings.items()}
        found.append(measurement_from_feedback(spoiled, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    failed = [timing for timing in found[0].timings if not timing.config.is_vendor]
    assert len(failed) > 10
    assert {(None, Outcome.FAILED_UNSPECIFIED)} == {(timing.runtime_us, timing.outcome) for timing in failed}


def test_addmm_carries_its_scalars_and_its_broadcast_bias() -> None:
    """An alpha other than 1 is part of the problem; the bias is the view that the kernels read."""
    bias = torch.zeros(256)
    [measurement] = events(lambda c, a, b: torch.addmm(c, a, b, alpha=2), bias, A, B)
    assert measurement.problem.scalars == (("alpha", 2),)
    assert measurement.problem.inputs[0] == TensorSpec("float32", (128, 256), (0, 1))
    assert "triton::mm" in {timing.config.template for timing in measurement.timings}


def test_addmm_scalars_come_from_the_vendor_call_too() -> None:
    """Where no choice carries its inputs, the ATen call still knows alpha and beta."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        for choice in timings:
            choice.annotations = {}
        found.append(measurement_from_feedback(timings, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(lambda c, a, b: torch.addmm(c, a, b, alpha=2, beta=3), torch.zeros(256), A, B)
    assert [measurement.problem.scalars for measurement in found] == [(("alpha", 2), ("beta", 3))]
    assert found[0].environment.template_hashes == {}


def test_hook_and_feedback_mean_the_same_problem() -> None:
    """What a model is asked in the hook is what was recorded, in each of addmm's calls."""
    bias = torch.zeros(256)
    seen: list[Any] = []
    [measurement] = events(torch.addmm, bias, A, B, look=lambda *call: seen.append(problems(*call)))
    assert {measurement.problem.key} == {problem.key for problem in seen}


def test_bmm_has_a_batch() -> None:
    """A bmm keeps its batch, and its kernels are those of another template."""
    [measurement] = events(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    shape = measurement.problem.shape
    assert (shape.op, shape.b, shape.m, shape.n, shape.k) == ("bmm", 4, 64, 48, 32)
    assert {timing.config.template for timing in measurement.timings} == {"aten::bmm", "triton::bmm"}


def test_symbolic_sizes_are_their_hints() -> None:
    """With dynamic shapes, a record holds the sizes that were really timed."""
    seen: list[Any] = []
    [measurement] = events(torch.mm, A, B, dynamic=True, look=lambda *call: seen.append(problems(*call)))
    assert measurement.problem.inputs == (
        TensorSpec("float32", (128, 512), (512, 1)),
        TensorSpec("float32", (512, 256), (256, 1)),
    )
    assert [measurement.problem] == seen


def test_a_hint_override_stands_for_symbolic_sizes() -> None:
    """Where Inductor compiles for several sizes, the one it timed with is recorded; static sizes stay."""

    def look(kernel_inputs: Any, op_name: str, _: Any) -> Any:
        assert not isinstance(kernel_inputs.nodes()[0].get_size()[0], int)
        return problem_of_nodes(op_name, kernel_inputs.nodes(), hint_override=64)

    a = A.clone()
    torch._dynamo.mark_dynamic(a, 0)
    [problem] = asked(torch.mm, a, B, look=look)
    assert (problem.shape.m, problem.shape.n, problem.shape.k) == (64, 256, 512)


def test_tf32_is_part_of_a_float32_problem_only_when_asked_for(request: pytest.FixtureRequest) -> None:
    """Allowing TF32 makes another float32 problem, and means nothing for bfloat16."""
    request.addfinalizer(lambda: torch.set_float32_matmul_precision("highest"))
    torch.set_float32_matmul_precision("high")
    assert [problem.scalars for problem in asked(torch.mm, A, B, look=problems)] == [(("ALLOW_TF32", True),)]
    assert [problem.scalars for problem in asked(torch.mm, A.bfloat16(), B.bfloat16(), look=problems)] == [()]


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, True), (torch.bfloat16, False)])
def test_tf32_is_part_of_a_float32_kernel_only(dtype: torch.dtype, expected: bool) -> None:  # noqa: FBT001 - a case
    """Triton ignores the flag for other dtypes, so it must not make another kernel of the same."""
    ktc = remembered_ktc("triton::mm", {"BLOCK_M": 16}, dtype, ALLOW_TF32=True)
    assert config_of_ktc(ktc).allow_tf32 is expected
    assert columns_of_choices([ktc]).allow_tf32.tolist() == [expected]


def remembered_ktc(uid: str, params: dict[str, Any], dtype: torch.dtype, **extra: Any) -> SimpleNamespace:
    """Return what the adapter reads of a KernelTemplateChoice."""
    return SimpleNamespace(
        template=SimpleNamespace(uid=uid),
        params=SimpleNamespace(to_kwargs=lambda: dict(params)),
        extra_kwargs=extra,
        inputs=SimpleNamespace(nodes=lambda: [SimpleNamespace(get_dtype=lambda: dtype)]),
    )


def test_output_dtype_is_part_of_the_problem_where_it_differs() -> None:
    """An int8 product with int32 output says so; a bfloat16 one with bfloat16 output does not."""
    [problem] = asked(torch._int_mm, A.to(torch.int8), B.to(torch.int8), look=problems)
    assert (problem.op, problem.scalars) == ("int_mm", (("out_dtype", "int32"),))
    [problem] = asked(torch.mm, A.bfloat16(), B.bfloat16(), look=problems)
    assert problem.scalars == ()


def test_an_autoheuristic_mm_is_an_mm() -> None:
    """AutoHeuristic asks for its extra configs under a name of its own."""
    [problem] = asked(torch.mm, A, B, look=lambda inputs, _, __: problem_of_inputs(inputs, "mm-ah"))
    assert problem.op == "mm"


def test_an_op_that_is_no_matrix_product_is_refused() -> None:
    """A convolution is nothing that we record."""
    with pytest.raises(RecordError, match="unknown op 'convolution'"):
        problem_of_nodes("convolution", [])


def with_cuda_list(uid: str) -> Callable[..., list[Any]]:
    """Return a look at a hook call that gives its list and behind it CUDA's EXHAUSTIVE list of a template."""
    return lambda kernel_inputs, name, listed: [*listed, *cuda_choices(kernel_inputs, uid, name)]


@pytest.mark.parametrize("uid", ["triton::mm", "triton::mm_persistent_tma"])
def test_columns_hold_what_each_config_holds(uid: str) -> None:
    """The fast path gives the hook the very numbers that configs hold, for vendor and Triton kernels mixed."""
    ktcs = asked(torch.mm, A, B, look=with_cuda_list(uid))[0]
    assert len(ktcs) > 100
    fast = columns_of_choices(ktcs)
    slow = ConfigColumns.from_configs([config_of_ktc(ktc) for ktc in ktcs])
    assert fast.templates == slow.templates
    for name in ("template_index", *INT_COLUMNS, "allow_tf32"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
        assert getattr(fast, name).dtype == getattr(slow, name).dtype
    assert len(fast) == len(ktcs)


def test_no_choices_make_empty_columns() -> None:
    """A call that lists nothing is no error."""
    columns = columns_of_choices([])
    assert (len(columns), columns.templates, columns.block_m.tolist()) == (0, (), [])


def test_columns_of_a_template_without_blocks_are_zero() -> None:
    """decompose_k has a k_split and no blocks."""
    ktc = remembered_ktc("decompose_k", {"k_split": 4}, torch.bfloat16)
    columns = columns_of_choices([ktc])
    assert (columns.templates, columns.block_m.tolist(), columns.num_warps.tolist()) == (("decompose_k",), [0], [0])
    assert config_of_ktc(ktc) == KernelConfig("decompose_k", kwargs=(("k_split", 4),))


def test_cpp_choices_of_a_real_benchmark() -> None:
    """A bmm timed for real on this CPU: ATen and Inductor's own C++ template, in microseconds."""
    seen: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        seen.append((measurement_from_feedback(timings, name, nodes, choices), list(timings.values())))

    with quiet_torch(), fresh_cache(), saver(keep), torch._inductor.config.patch(max_autotune_gemm_backends="CPP,ATEN"):
        compile_and_run(torch.bmm, torch.zeros(8, 64, 256), torch.zeros(8, 256, 128))
    [(measurement, milliseconds)] = seen
    templates = [timing.config.template for timing in measurement.timings]
    assert templates[0] == "aten::bmm"
    assert [template.partition("_")[0] for template in templates[1:]] == ["cpp::CppMicroGemmFP32Vec"]
    assert [1000 * value for value in milliseconds] == [timing.runtime_us for timing in measurement.timings]
    assert measurement.choice_policy == "stock"


class PlainChoice(SimpleNamespace):
    """A choice that carries no KernelTemplateChoice."""

    __hash__ = object.__hash__  # callers are compared by identity


def plain_choice(name: str, description: str = "", /, **info: Any) -> PlainChoice:
    """Return a choice that says this of itself."""
    node = SimpleNamespace(get_dtype=lambda: torch.bfloat16)
    return PlainChoice(name=name, description=description, info_dict=lambda: info, input_nodes=[node])


TILE = {"tile_shape": "(64, 32, 128)", "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "allow_tf32": "True"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (plain_choice("bias_addmm", backend="extern"), KernelConfig("aten::bias_addmm")),
        (
            plain_choice("decompose_k_mm_4_split_0", "k_split=4", backend="subgraph", kernel_name="x"),
            KernelConfig("decompose_k", kwargs=(("k_split", 4),)),
        ),
        (
            plain_choice("contiguous_mm_0", "contiguous mm", backend="subgraph", kernel_name="x"),
            KernelConfig("contiguous_mm"),
        ),
        (
            plain_choice("triton_mm_7", backend="Triton", acc_type="tl.float32", kpack=2, **TILE),
            KernelConfig("triton::mm", 64, 128, 32, 8, 3, 4, allow_tf32=False, acc_type="tl.float32"),
        ),
        (
            plain_choice("cutlass_9f3", backend="CUDA", op_type="GemmOperation", op_name="s128", swizzle="2"),
            KernelConfig("cutlass::GemmOperation", kwargs=(("op_name", "s128"), ("swizzle", "2"))),
        ),
        (
            plain_choice("nv_universal_gemm_3", backend="nv_universal_gemm", name="x", kernel_name="k128"),
            KernelConfig("nv_universal_gemm::nv_universal_gemm", kwargs=(("kernel_name", "k128"),)),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, SimpleNamespace) else "",
)
def test_choices_without_ktc(choice: Any, expected: KernelConfig) -> None:
    """Choices that the hook never listed are read from their names, descriptions and info."""
    assert expected == config_of_choice(choice)


def test_triton_arguments_of_other_versions() -> None:
    """Older Triton prints arguments that newer ones lack; a value may be a word in quotes or a refusal of TF32."""
    old = "ACC_TYPE='tl.float32', ALLOW_TF32='False', BLOCK_K=16, num_consumer_groups=0, num_stages=1, num_warps=2"
    expected = KernelConfig(
        "triton::mm", block_k=16, num_stages=1, num_warps=2, allow_tf32=False, acc_type="tl.float32"
    )
    assert expected == config_of_choice(plain_choice("triton_mm_7", old, backend="Triton"))


def test_a_choice_that_says_nothing_is_refused() -> None:
    """Rather no record than a made-up name."""
    with pytest.raises(RecordError, match="does not say which backend"):
        config_of_choice(plain_choice("mystery"))


def test_unreadable_choices_are_counted_and_the_rest_is_kept() -> None:
    """One choice that nobody knows costs no other timing of its event."""
    found: list[Any] = []

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        spoiled = {**timings, plain_choice("mystery"): 1.0, object(): 1.0, plain_choice("mm", backend="extern"): "slow"}
        found.append((measurement_from_feedback(spoiled, name, nodes, choices), len(timings)))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    [(measurement, expected)] = found
    assert len(measurement.timings) == expected
    assert measurement.extra == {"unreadable_choices": 3}


def test_an_event_without_a_readable_choice_is_refused() -> None:
    """There is nothing to record."""
    with pytest.raises(RecordError, match="mm: none of 1 choices could be read"):
        measurement_from_feedback({plain_choice("mystery"): 1.0}, "mm", [])


def test_several_choices_of_one_config_keep_the_fastest() -> None:
    """Two callers of one kernel are one timing: the fastest that worked."""
    found: list[Any] = []
    times = iter([float("inf"), 0.3, 0.2, 0.4])

    def keep(timings: Any, name: str, nodes: Any, choices: Any, *_: Any) -> None:
        doubled = {plain_choice("mm", backend="extern"): time for time in times}
        found.append(measurement_from_feedback(doubled, name, nodes, choices))

    with triton_choices_on_cpu(), saver(keep):
        compile_and_run(torch.mm, A, B)
    assert [[(t.config.template, t.runtime_us) for t in m.timings] for m in found] == [[("aten::mm", 200.0)]]


def test_unknown_devices_are_refused() -> None:
    """Timings of a device that we cannot describe are worth nothing."""
    assert detect_hardware("meta") is None
    node = SimpleNamespace(get_device=lambda: torch.device("meta"))
    with pytest.raises(RecordError, match="mm: timings of a meta device"):
        measurement_from_feedback({plain_choice("mm", backend="extern"): 1.0}, "mm", [node])


def test_replays_are_told_by_inductors_count() -> None:
    """An event during which Inductor benchmarked nothing brought cached timings, also after the count was cleared."""
    detector = ReplayDetector()
    assert detector.is_replay()
    counters["inductor"]["select_algorithm_autotune"] += 1
    assert [detector.is_replay(), detector.is_replay()] == [False, True]
    del counters["inductor"]
    counters["inductor"]["select_algorithm_autotune"] += 1
    assert [detector.is_replay(), detector.is_replay()] == [False, True]


def test_who_listed_the_choices() -> None:
    """Stock Inductor, a hook that says it filtered, one of ours that did not, or a stranger's."""

    class Ours(Observer):
        annotates_choices = True

    class Unrelated(InductorChoices):
        pass

    marked = SimpleNamespace(annotations={POLICY_ANNOTATION: "hook:abc"})
    with V.set_choices_handler(InductorChoices()):
        assert choice_policy([SimpleNamespace()]) == "stock"
        assert choice_policy([SimpleNamespace(annotations={}), marked]) == "hook:abc"
    with V.set_choices_handler(Unrelated()):
        assert choice_policy([]) == "stock"
    with V.set_choices_handler(Ours(print)):
        assert choice_policy([]) == "stock"
    with V.set_choices_handler(Observer(print)):
        assert choice_policy([]) == "hook:Observer"


H200_PROPERTIES = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "L2_cache_size": 62914560,
    "shared_memory_per_block_optin": 232448,
    "total_memory": 150_120_824_832,
    "clock_rate": 1_980_000,
}


def test_hardware_of_a_known_gpu() -> None:
    """The driver's figures, and the published bandwidth that it does not tell."""
    hardware = device.hardware_of_properties(SimpleNamespace(**H200_PROPERTIES), is_amd=False)
    assert (hardware.vendor, hardware.name, hardware.arch) == ("nvidia", "NVIDIA H200", "sm_90")
    assert (hardware.multiprocessors, hardware.l2_bytes) == (132, 62914560)
    assert (hardware.shared_memory_per_block_bytes, hardware.memory_bytes) == (232448, 150_120_824_832)
    assert (hardware.memory_bandwidth_bytes_per_s, hardware.max_clock_mhz) == (4_800_000_000_000, 1980)


def test_hardware_of_an_unknown_gpu() -> None:
    """Bandwidth follows from clock and bus; an AMD device's arch comes without its feature flags."""
    told = {**H200_PROPERTIES, "name": "AMD X", "gcnArchName": "gfx950:sramecc+", "L2_cache_size": 0}
    told |= {"memory_clock_rate": 2_000_000, "memory_bus_width": 8192}
    hardware = device.hardware_of_properties(SimpleNamespace(**told), is_amd=True)
    assert (hardware.vendor, hardware.arch, hardware.l2_bytes) == ("amd", "gfx950", None)
    assert hardware.memory_bandwidth_bytes_per_s == 2 * 2_000_000_000 * 8192 // 8


def test_hardware_of_a_silent_gpu() -> None:
    """What an old driver does not tell is unknown, not zero."""
    told = SimpleNamespace(name="GPU", major=1, minor=2, multi_processor_count=3, total_memory=4)
    hardware = device.hardware_of_properties(told, is_amd=False)
    assert (hardware.arch, hardware.l2_bytes, hardware.max_clock_mhz) == ("sm_12", None, None)
    assert (hardware.shared_memory_per_block_bytes, hardware.memory_bandwidth_bytes_per_s) == (None, None)


def test_this_cpu() -> None:
    """A CPU is hardware as well."""
    hardware = detect_hardware(torch.device("cpu"))
    assert hardware is not None
    assert hardware.name
    assert hardware.arch.startswith(("x86_64", "aarch64", "arm64"))
    assert hardware.multiprocessors >= 1
    assert hardware is detect_hardware("cpu")


def test_no_gpu_where_there_is_none() -> None:
    """Asking for a GPU without one is answered, not raised."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert detect_hardware("cuda") is None
    assert device.device_uuid("cuda") is None
    assert device.device_uuid("cpu") is None


def test_environment_names_versions_and_no_host() -> None:
    """What timings depend on, and nothing that would split a fleet."""
    environment = detect_environment()
    assert environment.torch == torch.__version__
    assert environment.triton[0].isdigit()
    assert environment.compute.split()[0] in {"cpu", "cuda", "rocm"}
    assert environment.os.startswith(("Linux", "Darwin"))


def test_columns_of_1400_choices_are_quick() -> None:
    """The hook may spend well under two milliseconds on a whole exhaustive list (0.5 ms when measured)."""
    inputs = torch.zeros(512, 1024).bfloat16(), torch.zeros(1024, 768).bfloat16()
    ktcs = asked(torch.mm, *inputs, look=with_cuda_list("triton::mm"))[0]
    assert len(ktcs) > 1400
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        columns_of_choices(ktcs)
        best = min(best, time.perf_counter() - start)
    assert best < 0.005
