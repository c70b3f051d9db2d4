"""How many kernels a problem has, in which search space, and how long a sweep takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from diode_collectors.problems.choices import can_use_tma, count_choices, seconds_estimate
from diode_collectors.problems.problem import parse_problem
from diode_collectors.problems.search_space import SearchSpace
from diode_store.errors import SettingsError
from inductor_events import asked
from inductor_harness import cuda_choices

H200_BYTES = 232_448
UIDS = ("triton::mm", "triton::mm_persistent_tma")
DEFAULT, EXHAUSTIVE = SearchSpace("DEFAULT"), SearchSpace("EXHAUSTIVE")


def triton_choices(text: str, space: SearchSpace, shared_memory_bytes: int | None = None) -> int:
    """Count the choices of a problem without the vendor's and without TMA."""
    problem = parse_problem(text)
    return count_choices(problem, space, shared_memory_bytes=shared_memory_bytes, include_tma=False) - 1


@pytest.mark.parametrize(
    ("text", "default", "exhaustive", "fitting", "tma"),
    [
        ("mm:16x16x16", 5, 5, 5, 5),
        ("mm:8x4096x4096", 19, 250, 226, 175),
        ("mm:128x256x512", 21, 1175, 1039, 825),
        ("mm:512x512x512", 21, 1400, 1206, 1000),
        ("mm:4096x4096x4096", 21, 1400, 1206, 1000),
    ],
)
def test_counts_are_those_seen_on_an_h200(text: str, default: int, exhaustive: int, fitting: int, tma: int) -> None:
    """DEFAULT, EXHAUSTIVE with and without what fits shared memory, and persistent TMA kernels."""
    assert triton_choices(text, DEFAULT) == default
    assert triton_choices(text, EXHAUSTIVE) == exhaustive
    assert triton_choices(text, EXHAUSTIVE, H200_BYTES) == fitting
    with_tma = count_choices(parse_problem(text), EXHAUSTIVE, shared_memory_bytes=None, include_tma=True)
    assert with_tma == 1 + exhaustive + tma


@pytest.mark.parametrize(
    ("space", "plain", "tma"), [("SAMPLE:8", 21, 8), ("GUIDED:8", 8, 2), ("SAMPLE:64", 64, 16), ("GUIDED:64", 64, 16)]
)
def test_a_sample_has_all_of_default(space: str, plain: int, tma: int) -> None:
    """However few it asks for; a guided one has no more than it asks for."""
    parsed = SearchSpace.parse(space)
    assert triton_choices("mm:512x512x512", parsed) == plain
    both = count_choices(parse_problem("mm:512x512x512"), parsed, shared_memory_bytes=None, include_tma=True)
    assert both == 1 + plain + tma


@pytest.mark.parametrize(
    ("text", "sampled", "guided"), [("mm:16x16x16", 5, 1), ("mm:129x305x127", 224, 224), ("mm:129x305x128", 300, 300)]
)
def test_what_is_drawn_is_kernels(text: str, sampled: int, guided: int) -> None:
    """Where the loop is not pipelined a kernel is timed once, but for what is in DEFAULT."""
    counts = [triton_choices(text, SearchSpace.parse(f"{kind}:300")) for kind in ("SAMPLE", "GUIDED")]
    assert counts == [sampled, guided]


def test_wider_elements_leave_fewer_that_fit() -> None:
    """An fp32 tile takes twice the shared memory."""
    assert triton_choices("mm:512x512x512/fp32", EXHAUSTIVE, H200_BYTES) == 986


@pytest.mark.parametrize("text", ["mm:33x100x8/fp32", "mm:128x256x512/fp32", "addmm:64x64x2048/fp32"])
def test_counts_are_those_that_inductor_lists(text: str) -> None:
    """The CUDA heuristics of the installed torch, asked for real, list about as many; torch 2.15 has a tenth more."""
    problem = parse_problem(text)
    inputs = [torch.zeros(problem.m, problem.k), torch.zeros(problem.k, problem.n)]
    if problem.op == "addmm":
        inputs.insert(0, torch.zeros(problem.n))

    def look(kernel_inputs: Any, op_name: str, _: Any) -> tuple[int, int]:
        return tuple(len(cuda_choices(kernel_inputs, uid, op_name)) for uid in UIDS)

    plain, both = (
        count_choices(problem, EXHAUSTIVE, shared_memory_bytes=None, include_tma=tma) for tma in (False, True)
    )
    assert can_use_tma(problem)
    [listed] = set(asked(getattr(torch, problem.op), *inputs, look=look))
    assert listed == pytest.approx((plain - 1, both - plain), rel=0.1)


@pytest.mark.parametrize(
    ("text", "possible"),
    [
        ("mm:64x64x64", True),
        ("addmm:7x64x64/nt", True),
        ("mm:64x64x4/fp32", True),
        ("mm:64x64x4/bf16", False),
        ("mm:7x64x64/tn", False),
        ("mm:64x100x64", False),
        ("mm:64x100x64/nt", True),
        ("bmm:64x64x64:2", False),
    ],
)
def test_tma_needs_rows_of_16_bytes_and_no_batch(text: str, *, possible: bool) -> None:
    """It is the rows as they lie in memory that count."""
    assert can_use_tma(parse_problem(text)) is possible


def test_a_sample_has_as_many_as_it_says() -> None:
    """Beside the vendor's; fewer where there are fewer."""
    assert triton_choices("mm:512x512x512", SearchSpace.parse("SAMPLE:72")) == 72
    assert triton_choices("mm:16x16x16", SearchSpace.parse("SAMPLE:72")) == 5


def test_time_is_bound_by_cores_or_by_devices() -> None:
    """1.8 CPU-seconds and 1,401 choices of 0.22, in fp32 without TF32 15 times that; with many cores the GPU counts."""

    def estimate(text: str, cores: int, devices: int = 1) -> float:
        problems = [parse_problem(text)]
        return seconds_estimate(
            problems, EXHAUSTIVE, shared_memory_bytes=None, include_tma=False, cores=cores, devices=devices
        )

    assert estimate("mm:512x512x512", 16) == pytest.approx((1.8 + 1401 * 0.22) / 16)
    assert estimate("mm:512x512x512/tf32", 16) == pytest.approx((1.8 + 1401 * 0.22) / 16)
    assert estimate("mm:512x512x512/fp32", 16) == pytest.approx((1.8 + 15 * 1401 * 0.22) / 16)
    assert estimate("mm:512x512x512", 1000) == pytest.approx(0.1 + 1401 * 0.005)
    assert estimate("mm:512x512x512", 1000, 4) == pytest.approx((0.1 + 1401 * 0.005) / 4)


def test_the_vendors_kernels_cost_no_compiling() -> None:
    """Of a product with a bias there are two, whatever its sizes; it takes a fraction of what a sample does."""
    space = SearchSpace.parse("VENDOR")
    problems = [parse_problem(text) for text in ("mm:512x512x512", "addmm:512x512x512/fp32", "bmm:8x8x8:2")]

    def seconds(cores: int) -> float:
        return seconds_estimate(
            problems, space, shared_memory_bytes=None, include_tma=True, cores=cores, devices=1, shares_kernels=True
        )

    assert [count_choices(each, space, shared_memory_bytes=None, include_tma=True) for each in problems] == [1, 2, 1]
    assert seconds(1) == pytest.approx(3 * 0.7)
    assert seconds(1000) == pytest.approx(4 * 0.005)
    assert SearchSpace.parse("DEFAULT").size > space.size


def test_what_is_compiled_already_costs_little() -> None:
    """Four of five kernels of a problem that shares them are new; of odd rows all are."""
    space = SearchSpace.parse("GUIDED:20")

    def cpu_s(*texts: str, shares_kernels: bool = True) -> float:
        options = {"shared_memory_bytes": None, "include_tma": False, "cores": 1, "devices": 1}
        problems = [parse_problem(text) for text in texts]
        return seconds_estimate(problems, space, shares_kernels=shares_kernels, **options)  # type: ignore[arg-type]

    one = 1.8 + 21 * 0.22
    shared = 1.8 + 17 * 0.22 + 4 * 0.04
    assert cpu_s("mm:512x512x512", "mm:1024x512x512", shares_kernels=False) == pytest.approx(2 * one)
    assert cpu_s("mm:512x512x512", "mm:1024x512x512") == pytest.approx(2 * shared)
    assert cpu_s("mm:512x512x512", "mm:512x512x513") == pytest.approx(shared + one)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DEFAULT", SearchSpace("DEFAULT")),
        ("vendor", SearchSpace("VENDOR")),
        ("exhaustive", SearchSpace("EXHAUSTIVE")),
        (" sample:72", SearchSpace("SAMPLE", 72)),
        ("Guided:24", SearchSpace("GUIDED", 24)),
    ],
)
def test_search_spaces_are_parsed(text: str, expected: SearchSpace) -> None:
    """In any case of letters; what one prints can be typed again."""
    assert SearchSpace.parse(text) == expected
    assert SearchSpace.parse(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("HUGE", "unknown search space 'HUGE'; expected DEFAULT, EXHAUSTIVE, SAMPLE:N"),
        ("SAMPLE", "unknown search space 'SAMPLE'"),
        ("SAMPLE:-1", "unknown search space"),
        ("SAMPLE:0", "SAMPLE:N needs an N of at least 1"),
        ("GUIDED:0", "GUIDED:N needs an N of at least 1, such as GUIDED:72"),
        ("DEFAULT:3", "unknown search space"),
    ],
)
def test_unknown_search_spaces_are_refused(text: str, message: str) -> None:
    """The message says what there is."""
    with pytest.raises(SettingsError, match=message):
        SearchSpace.parse(text)


def test_only_a_sample_has_a_count() -> None:
    """The others are whole lists."""
    with pytest.raises(SettingsError, match="DEFAULT takes no count; write SAMPLE:3"):
        SearchSpace("DEFAULT", 3)
    spaces = [SearchSpace.parse(text) for text in ("DEFAULT", "EXHAUSTIVE", "SAMPLE:3", "GUIDED:5")]
    assert [space.listed for space in spaces] == ["DEFAULT", "EXHAUSTIVE", "EXHAUSTIVE", "EXHAUSTIVE"]
    assert [space.size for space in spaces] == [0, math.inf, 3, 5]
    assert [space.is_drawn for space in spaces] == [False, False, True, True]
