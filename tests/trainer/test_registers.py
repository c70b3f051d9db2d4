"""What a kernel needs of a thread, against kernels that Triton 3.6 and ptxas compiled for sm_90.

Inductor's templates were compiled for fixed sizes, and ``ptxas -v`` told the registers and the bytes that spill.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic import H200, MM, columns

from diode_store.devices.descriptor import describe
from diode_store.records import ProblemShape
from diode_trainer.launch import MOST_REGISTERS, ListTerms
from diode_trainer.work import Work

Row = tuple[int, int, int, int, int]
"""Block sizes M, N and K, stages, warps."""
ODD = ProblemShape("mm", "bfloat16", 1, 14, 304, 97, "nt")
THIN = ProblemShape("mm", "bfloat16", 1, 129, 15, 1032, "tn")
EVEN = ProblemShape("mm", "float16", 1, 333, 333, 128, "nt")
FP32 = ProblemShape("mm", "float32", 1, 128, 128, 128, "nn")


def launch(shape: ProblemShape, *rows: Row, template: str = "triton::mm") -> ListTerms:
    """Return how configs would run."""
    listed = columns(*((template, *row[:3], 8, *row[3:], False) for row in rows))
    return ListTerms(listed, Work(shape, describe(H200)).kind(listed))


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        pytest.param(ODD, (16, 256, 64, 2, 2), id="272 narrow loads of a thread: 12,288 bytes"),
        pytest.param(THIN, (256, 16, 128, 3, 2), id="544 narrow loads of a thread: 11,264 bytes"),
        pytest.param(FP32, (32, 32, 128, 2, 4), id="no tensor cores, K unrolled 128 times: 3,584 bytes"),
    ],
)
def test_kernels_that_spill_are_told(shape: ProblemShape, row: Row) -> None:
    """They want more registers than a thread can have."""
    assert launch(shape, row).demand[0] > MOST_REGISTERS


@pytest.mark.parametrize(
    ("shape", "row", "registers"),
    [
        (ODD, (16, 64, 64, 3, 4), 164),
        (ODD, (16, 64, 32, 3, 4), 94),
        (EVEN, (128, 128, 32, 3, 4), 158),
        (EVEN, (64, 128, 32, 4, 8), 58),
        (EVEN, (64, 64, 128, 5, 4), 70),
        (FP32, (64, 32, 32, 5, 8), 64),
    ],
)
def test_kernels_that_do_not_spill_want_what_they_use(shape: ProblemShape, row: Row, registers: int) -> None:
    """Within a factor of two; and none is said to spill."""
    assert registers / 2 < launch(shape, row).demand[0] < min(registers * 2, MOST_REGISTERS)


def test_loads_of_a_thread() -> None:
    """97 elements a row allow 2 bytes at a time: 16 x 64 of A and 64 x 64 of B are 8 and 32 loads a thread."""
    assert launch(ODD, (16, 64, 64, 3, 4)).loads.tolist() == [8 + 32]
    assert launch(EVEN, (128, 128, 32, 3, 4)).loads.tolist() == [4 + 4]


def test_stores_of_a_thread() -> None:
    """Rows of 333 are stored one by one, rows of 304 eight at a time."""
    row = (64, 128, 32, 3, 4)
    assert (launch(EVEN, row).stores.tolist(), launch(ODD, row).stores.tolist()) == ([64.0], [8.0])


def test_each_operand_is_pipelined_by_its_own_rows() -> None:
    """Rows of A are odd and those of B are not, so B alone has a buffer for each stage."""
    mixed = launch(ProblemShape("mm", "bfloat16", 1, 512, 512, 513, "nn"), (64, 64, 32, 4, 4))
    assert (mixed.buffers_a.tolist(), mixed.buffers_b.tolist()) == ([1.0], [4.0])
    assert mixed.shared_memory.tolist() == [64 * 32 * 2 * (1 + 4)]
    assert mixed.outstanding.tolist() == [64 * 32 * 2 * (1 + 3)]


def test_tma_loads_no_registers() -> None:
    """The hardware copies a tile; asked about odd rows, which no such kernel has, it still needs no more registers."""
    row = (64, 64, 64, 3, 4)
    even, odd = (launch(replace(MM, k=k), row, template="triton::mm_persistent_tma") for k in (1024, 1023))
    assert even.loads.tolist() == odd.loads.tolist() == [1.0]
    assert even.demand.tolist() == odd.demand.tolist()
    assert launch(replace(MM, k=1023), row).demand[0] > odd.demand[0]
