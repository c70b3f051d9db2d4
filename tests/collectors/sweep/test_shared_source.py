"""Kernels whose sizes are arguments: of the real sources that Inductor writes, run by Triton's interpreter."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch._inductor import select_algorithm
from torch._inductor.codecache import PyCodeCache

from diode_collectors.problems.kinds import kernel_kind
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.sweep.lane.shared_kernels import can_share, shared_kernels
from diode_collectors.sweep.lane.shared_source import shared_source
from inductor_harness import compile_and_run, triton_choices_on_cpu
from lanes import long

if TYPE_CHECKING:
    from collections.abc import Callable

SCRIPT = Path(__file__).with_name("interpreted_kernels.py")
HEAD = "import triton\nimport triton.language as tl\n\n"
PROBLEMS = [
    SweepProblem("mm", 100, 264, 72, dtype="float32"),
    SweepProblem("mm", 100, 264, 72, dtype="float32", layout="nt"),
    SweepProblem("mm", 72, 72, 72, dtype="float32", layout="nt"),
    SweepProblem("mm", 33, 65, 47, dtype="float32", layout="nt"),
    SweepProblem("mm", 8, 40, 72, dtype="float32", layout="nt"),
    SweepProblem("mm", 6, 40, 72, dtype="float32", layout="nt"),
    SweepProblem("mm", 40, 48, 33, dtype="float32", layout="tn"),
    SweepProblem("addmm", 50, 36, 32, dtype="float32", layout="nt"),
    SweepProblem("bmm", 33, 20, 40, 3, dtype="float32", layout="nt"),
    SweepProblem("bmm", 34, 34, 34, 3, dtype="float32"),
    SweepProblem("baddbmm", 33, 20, 40, 2, dtype="float32", layout="nn"),
    SweepProblem("baddbmm", 20, 33, 40, 2, dtype="float32", layout="tn"),
    SweepProblem("mm", 36, 40, 520, dtype="float32", layout="nt"),
    SweepProblem("mm", 36, 520, 520, dtype="float32"),
    SweepProblem("mm", 36, 40, 515, dtype="float32", layout="tn"),
    SweepProblem("addmm", 36, 40, 515, dtype="float32", layout="tn"),
    SweepProblem("bmm", 20, 24, 516, 2, dtype="float32", layout="nt"),
    SweepProblem("bmm", 40, 24, 516, 2, dtype="float32"),
    SweepProblem("bmm", 24, 40, 513, 2, dtype="float32", layout="tn"),
    SweepProblem("baddbmm", 516, 24, 516, 2, dtype="float32"),
]


def operands(problem: SweepProblem) -> list[torch.Tensor]:
    """Return the inputs of a problem, strided as it says, with values that tell rows and columns apart."""
    torch.manual_seed(0)
    found = []
    for spec in problem.problem().inputs:
        flat = torch.randn(1 + sum((size - 1) * stride for size, stride in zip(spec.size, spec.stride, strict=True)))
        found.append(torch.as_strided(flat.to(getattr(torch, problem.dtype)), spec.size, spec.stride))
    return found


def sources(problem: SweepProblem, run: Callable[[], object] = lambda: None) -> list[str]:
    """Return the sources that Inductor writes for the DEFAULT kernels of a problem."""
    found: list[str] = []
    load = PyCodeCache.load

    def keep(code: str, *arguments: Any, **named: Any) -> Any:
        if "@triton.jit" in code:
            found.append(code)
        return load(code, *arguments, **named)

    with triton_choices_on_cpu(), mock.patch.object(PyCodeCache, "load", keep):
        compile_and_run(getattr(torch, problem.op), *operands(problem))
        run()
    assert len(found) > 5
    return found


def config_of(code: str) -> dict[str, int]:
    """Return the blocks of a kernel."""
    lines = (line.strip().replace(" ", "") for line in code.splitlines() if "constexpr" in line)
    return {name: int(line.partition("=")[2]) for line in lines for name in [line.partition(":")[0]] if "BLOCK" in name}


def write_case(problem: SweepProblem, code: str, folder: Path) -> None:
    """Write a kernel that shares its source, and what it is to compute."""
    found = shared_source(code)
    inputs, blocks = operands(problem), config_of(found.code)
    grid = -(-problem.m // blocks["BLOCK_M"]) * -(-problem.n // blocks["BLOCK_N"])
    folder.mkdir()
    # The interpreter cannot join this to the rest of the mask, in Inductor's own kernel neither; the grid ends there.
    kernel = found.code[found.code.index("@triton.jit") :].replace(" & (idx_q < BATCH)", "")
    (folder / "kernel.py").write_text(HEAD + kernel)
    expected = getattr(torch, problem.op)(*inputs)
    case = {"inputs": inputs, "expected": expected, "sizes": found.sizes, "grid": (grid, problem.b, 1)}
    torch.save(case, folder / "case.pt")


@long
def test_they_compute_the_same(tmp_path: Path) -> None:
    """Kernels that share their source compute what torch does, whatever the layout and however sizes coincide."""
    with_k: set[tuple[str, str]] = set()
    for number, problem in enumerate(PROBLEMS):
        pipelined = [code for code in sources(problem) if "num_stages=1," not in code]
        found = sorted(pipelined, key=lambda code: (config_of(code)["BLOCK_K"], config_of(code)["BLOCK_M"]))
        for size, code in (("small", found[0]), ("large", found[-1])):
            write_case(problem, code, tmp_path / f"{number:02} {size}")
            if "K = K_size" in shared_source(code).code or "(K_size & " in shared_source(code).code:
                with_k.add((problem.op, problem.layout))
    run = subprocess.run([sys.executable, "-W", "ignore", SCRIPT, tmp_path], stdout=subprocess.PIPE, check=True)
    errors = json.loads(run.stdout)
    assert len(errors) == 2 * len(PROBLEMS)
    assert {name: error for name, error in errors.items() if not error < 1e-4} == {}
    assert with_k >= set(itertools.product(("mm", "bmm"), ("nn", "nt", "tn"))) | {("addmm", "tn"), ("baddbmm", "nn")}


SAME = [
    (SweepProblem("mm", 300, 264, 72), SweepProblem("mm", 5000, 264, 72)),
    (SweepProblem("mm", 264, 264, 72), SweepProblem("mm", 300, 264, 72)),
    (SweepProblem("mm", 300, 520, 72, layout="nt"), SweepProblem("mm", 777, 1032, 72, layout="nt")),
    (SweepProblem("mm", 300, 512, 512, layout="nt"), SweepProblem("mm", 512, 1024, 512, layout="nt")),
    (SweepProblem("mm", 2, 520, 72, layout="nt"), SweepProblem("mm", 4, 520, 72, layout="nt")),
    (SweepProblem("mm", 8, 520, 72, layout="nt"), SweepProblem("mm", 11, 520, 72, layout="nt")),
    (SweepProblem("mm", 70, 520, 72, layout="nt"), SweepProblem("mm", 100, 1032, 72, layout="nt")),
    (SweepProblem("bmm", 264, 264, 72, 3), SweepProblem("bmm", 300, 264, 72, 3)),
    (SweepProblem("bmm", 300, 264, 304, 3), SweepProblem("bmm", 400, 264, 304, 8)),
    (SweepProblem("addmm", 300, 520, 72, layout="nt"), SweepProblem("addmm", 777, 1032, 72, layout="nt")),
    (SweepProblem("bmm", 300, 520, 72, 3, layout="nt"), SweepProblem("bmm", 777, 1032, 72, 8, layout="nt")),
    (SweepProblem("baddbmm", 300, 264, 72, 3), SweepProblem("baddbmm", 777, 264, 72, 8)),
    (SweepProblem("baddbmm", 304, 264, 72, 3, layout="tn"), SweepProblem("baddbmm", 312, 272, 72, 8, layout="tn")),
    (SweepProblem("mm", 300, 264, 72), SweepProblem("mm", 300, 520, 72)),
    (SweepProblem("mm", 304, 264, 72, layout="tn"), SweepProblem("mm", 312, 272, 72, layout="tn")),
    (SweepProblem("mm", 300, 264, 520, layout="nt"), SweepProblem("mm", 5000, 272, 1032, layout="nt")),
    (SweepProblem("mm", 300, 264, 1024), SweepProblem("mm", 300, 264, 4096)),
    (SweepProblem("mm", 304, 264, 513, layout="tn"), SweepProblem("mm", 312, 272, 1001, layout="tn")),
    (SweepProblem("mm", 70_000, 264, 520, layout="nt"), SweepProblem("mm", 80_000, 272, 1032, layout="nt")),
    (SweepProblem("bmm", 304, 264, 640, 3, layout="nt"), SweepProblem("bmm", 312, 272, 1152, 8, layout="nt")),
]
OTHER = [
    (SweepProblem("mm", 8, 264, 72), SweepProblem("mm", 16, 264, 72)),
    (SweepProblem("mm", 6, 264, 72), SweepProblem("mm", 7, 264, 72)),
    (SweepProblem("mm", 60_000, 264, 72), SweepProblem("mm", 70_000, 264, 72)),
    (SweepProblem("mm", 300, 264, 40), SweepProblem("mm", 300, 264, 48)),
    (SweepProblem("addmm", 300, 264, 520), SweepProblem("addmm", 300, 264, 40_000)),
    (SweepProblem("mm", 300, 264, 520), SweepProblem("mm", 70_000, 264, 520)),
    (SweepProblem("mm", 300, 264, 72), SweepProblem("mm", 300, 264, 72, layout="nt")),
    (SweepProblem("mm", 300, 264, 72, layout="nt"), SweepProblem("mm", 300, 265, 72, layout="nt")),
    (SweepProblem("mm", 300, 264, 72), SweepProblem("mm", 300, 264, 72, dtype="float16")),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_problems_of_other_sizes_have_the_same_sources(one: SweepProblem, other: SweepProblem) -> None:
    """Each config's that is pipelined, so that its kernel is compiled once; and the arguments differ."""
    ours, theirs = (
        [shared_source(code) for code in sources(problem) if "num_stages=1," not in code] for problem in (one, other)
    )
    assert {found.code for found in ours} == {found.code for found in theirs}
    assert {found.sizes for found in ours} != {found.sizes for found in theirs}
    assert kernel_kind(one.problem().shape) == kernel_kind(other.problem().shape)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("one", "other"), OTHER, ids=str)
def test_sources_that_differ(one: SweepProblem, other: SweepProblem) -> None:
    """Where a size that stays a number differs, or what the compiler is told of one, so does each source."""
    ours, theirs = ({shared_source(code).code for code in sources(problem)} for problem in (one, other))
    assert not ours & theirs


def test_a_small_size_stays_a_number() -> None:
    """An M of less than half a block that is no power of two; and K where its loop has fewer than four turns."""
    (code,) = [code for code in sources(SweepProblem("mm", 6, 264, 256)) if "BLOCK_K : tl.constexpr = 64" in code][:1]
    assert shared_source(code).sizes == (33, 32)
    assert shared_source(code.replace("K = 256", "K = 192")).sizes == (33,)
    assert "M = 6" in shared_source(code).code


def test_k_stays_a_number_where_nothing_is_pipelined() -> None:
    """With it as an argument some kernels of one stage compute something else."""
    code = next(code for code in sources(SweepProblem("mm", 64, 264, 520)) if "num_stages=4" in code)
    assert shared_source(code).sizes == (64, 33, 65)
    assert shared_source(code.replace("num_stages=4", "num_stages=1")).sizes == (64, 33)


def test_what_32_bits_do_not_hold_stays_a_number() -> None:
    """No index may overflow that would not where its size is a number."""
    code = sources(SweepProblem("mm", 64, 264, 72))[-1]
    assert shared_source(code).sizes == (64, 33)
    assert shared_source(code.replace("M = 64", "M = 1000000")).sizes == (33,)
    assert shared_source(code.replace("M = 64", "M = 200000").replace("K = 72", "K = 20000")).sizes == ()
    assert shared_source(code.replace("K = 72", "K = 32760")).sizes == (64, 33, 4095)
    assert shared_source(code.replace("K = 72", "K = 32768")).sizes == (64, 33)
    assert shared_source(code.replace("M = 64", "M = 200000").replace("K = 72", "K = 8184")).sizes == (
        200_000,
        33,
        1023,
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@triton.jit", "@other.jit"),
        ("    K = ", "    J = "),
        ("triton_meta=", "meta="),
        ("'signature'", "'sign'"),
        ("num_stages=", "stages="),
    ],
)
def test_a_source_of_another_form(old: str, new: str) -> None:
    """It is refused, and then the kernel is timed as Inductor wrote it."""
    code = sources(SweepProblem("mm", 64, 264, 72))[-1].replace(old, new)
    with pytest.raises(ValueError, match="Inductor's"):
        shared_source(code)


TMA = """
@triton_heuristics.template(num_stages=3, triton_meta={'signature': {'arg_A': '*bf16', 'arg_B': '*bf16',
    'out_ptr0': '*bf16', 'ws_ptr': '*u8'},
    'configs': [{(0,): [['tt.divisibility', 16]], (3,): [['tt.divisibility', 16]]}]})
@triton.jit
def triton_mm_persistent_tma(arg_A, arg_B, out_ptr0, ws_ptr):
    BLOCK_M : tl.constexpr = 128
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 64
    A_ROW_MAJOR : tl.constexpr = True
    M = 384
    N = 384
    K = 1024
    stride_ak = 1
    stride_bk = 1
    for tile in tl.range(0, 9):
        for k in tl.range(0, K, BLOCK_K):
            acc += tl.dot(a, b)
        row = rm + tl.arange(0, 384)
        is_row = row < 384
        is_column = column < 384
        tl.store(out_ptr0 + 384*row + column, acc, is_row & is_column)
"""


def test_a_kernel_with_descriptors() -> None:
    """The arguments come before the workspace, what is told of it moves, and equal M and N are told apart."""
    found = shared_source(TMA)
    assert found.sizes == (384, 48, 128)
    assert "def triton_mm_persistent_tma(arg_A, arg_B, out_ptr0, M_size, N_size, K_size, ws_ptr):" in found.code
    assert "'M_size': 'i32', 'N_size': 'i32', 'K_size': 'i32', 'ws_ptr': '*u8'" in found.code
    assert "{(0,): [['tt.divisibility', 16]], (6,): [['tt.divisibility', 16]]}" in found.code
    assert "N = 8 * N_size" in found.code
    assert "K = 8 * (K_size & 4095)" in found.code
    assert "row = rm + tl.arange(0, 384)" in found.code
    assert "is_row = row < M\n" in found.code
    assert "is_column = column < N\n" in found.code
    assert "out_ptr0 + N * row + column" in found.code
    other = shared_source(TMA.replace("M = 384", "M = 512").replace("row < 384", "row < 512"))
    assert (other.code, other.sizes) == (found.code, (512, 48, 128))


def test_a_branch_that_numbers_do_not_decide() -> None:
    """It stays, and so do both of its sides."""
    text = "        if M > 100 and tile > 3 or acc.any():\n            other()\n        is_row ="
    found = shared_source(TMA.replace("        is_row =", text))
    assert "if M > 100 and tile > 3 or acc.any():" in found.code
    decided = shared_source(TMA.replace("        is_row =", text.replace("tile > 3 or acc.any()", "N != 384 or K < 2")))
    assert "other()" not in decided.code


def test_a_kernel_with_descriptors_and_another_layout() -> None:
    """Strides become the sizes that they are, and of a transposed A it is known what divides its rows."""
    transposed = TMA.replace("stride_ak = 1", "stride_am = 1\n    stride_ak = 384")
    found = shared_source(transposed.replace("stride_bk = 1", "stride_bk = 384\n    stride_bn = 1"))
    assert found.sizes == (48, 48, 1024)
    assert "    stride_am = 1\n    stride_ak = M\n    stride_bk = N\n    stride_bn = 1\n" in found.code
    assert "    M = 8 * M_size\n    N = 8 * N_size\n    K = K_size & 32767\n" in found.code


def test_inductor_launches_them_with_the_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments are passed behind the tensors and before the grid; what is compiled is kept in the folder."""
    assert can_share()
    seen: list[Any] = []
    problem = SweepProblem("mm", 100, 264, 40, layout="nt")
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)

    def time_ms(choice: Any) -> float:
        if isinstance(choice, select_algorithm.TritonTemplateCaller):
            source = Path(choice.bmreq.module_path).read_text()
            seen.append((choice.bmreq.extra_args, os.environ["TRITON_CACHE_DIR"], "M = M_size" in source))
            return 1.0
        return 0.5

    with triton_choices_on_cpu(time_ms=time_ms), shared_kernels(tmp_path):
        result = compile_and_run(torch.mm, *operands(problem))
    assert result.shape == (100, 264)
    assert len(seen) > 5
    found = {(*arguments[:2], len(arguments), folder, is_ours) for arguments, folder, is_ours in seen}
    assert found == {(100, 33, 5, str(tmp_path), True)}


def test_everything_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind it Inductor writes its own kernels again, and Triton keeps them where it did."""
    before = select_algorithm.TritonTemplate.generate_and_load
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    with shared_kernels(tmp_path):
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path)
        assert select_algorithm.TritonTemplate.generate_and_load != before
    assert os.environ["TRITON_CACHE_DIR"] == "/somewhere"
    assert select_algorithm.TritonTemplate.generate_and_load == before


@pytest.mark.parametrize("missing", ["GenerateAndLoadResult", "PyCodeCache"])
def test_another_inductor_cannot_share(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name is missing it is found out before anything is timed."""
    monkeypatch.delattr(select_algorithm, missing)
    assert not can_share()
