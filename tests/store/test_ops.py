"""The table of ops: a toy op is added to it, and goes from a record to an answer."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import samples
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_store.candidates.names import kernel_config, template_uid
from diode_store.errors import RecordError
from diode_store.ops import OPS, Op, find_op, op_of_vendor, swept_ops
from diode_store.query import analytics
from diode_store.records import Problem, TensorSpec, Timing
from diode_store.wire import codec

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand
    from diode_store.warehouse.store import Store

TOY = Op("toymm", "triton::toy", vendors=("aten::toymm",), is_batched=True, has_bias=True, is_swept=True)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the toy op to the table."""
    monkeypatch.setitem(OPS, TOY.name, TOY)


def toy_problem() -> Problem:
    """Return a batch of 3 products with a bias of one row, which broadcasts."""
    inputs = (
        TensorSpec("float16", (16,), (1,)),
        TensorSpec("float16", (3, 8, 24), (192, 24, 1)),
        TensorSpec("float16", (3, 24, 16), (384, 16, 1)),
    )
    return Problem.create("toymm", inputs, {"alpha": 1})


def test_a_record_of_the_toy_op() -> None:
    """Operands, batch and bias follow from the entry."""
    problem = toy_problem()
    shape = problem.shape
    assert (shape.b, shape.m, shape.n, shape.k, shape.layout) == (3, 8, 16, 24, "nn")
    assert problem.inputs[0] == TensorSpec("float16", (3, 8, 16), (0, 0, 1))
    assert problem.scalars == ()
    with pytest.raises(RecordError, match="toymm needs at least 3 inputs"):
        Problem.create("toymm", problem.inputs[1:])


def test_from_a_record_to_the_fastest_kernel(store: Store, database_path: Path, diode: RunCommand) -> None:
    """A measurement of the toy op is written, decoded, stored, and read by views and commands."""
    fast = kernel_config(TOY.template, {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "num_stages": 2, "num_warps": 2})
    vendor = kernel_config("toymm", {})
    made = samples.measurement(1, problem=toy_problem(), timings=(Timing(vendor, 20.0), Timing(fast, 10.0)))
    store.write([codec.decode(codec.encode(made))])
    with closing(analytics.connect(str(database_path))) as connection:
        gap = connection.execute("SELECT op, b, vendor_template, triton_template, speedup FROM vendor_gap").fetchall()
    assert gap == [("toymm", 3, "aten::toymm", "triton::toy", 2.0)]
    answer = diode("fastest", "--hardware", "h200", "--op", "toymm", "--json", "--database", database_path)
    [row] = json.loads(answer.out)
    assert (row["kernel"], row["runtime_us"], row["speedup"]) == ("triton::toy 16x16x16 s2 w2", 10.0, 2.0)


def test_a_sweep_of_the_toy_op() -> None:
    """A person types the toy op as any other, and a sweep knows its inputs and its work."""
    problem = parse_problem("toymm:8x16x24:3")
    assert problem == SweepProblem("toymm", 8, 16, 24, 3)
    assert [spec.size for spec in problem.problem().inputs] == [(3, 8, 16), (3, 8, 24), (3, 24, 16)]
    assert problem.flops == 2 * 3 * 8 * 16 * 24
    assert problem.memory_bytes == 2 * 3 * (8 * 24 + 24 * 16 + 8 * 16 + 8 * 16)


def test_names_of_the_toy_op() -> None:
    """Its vendor kernel is known by its name, and the op by its vendor kernel."""
    assert template_uid("toymm") == "aten::toymm"
    assert op_of_vendor("aten::toymm") == "toymm"
    assert "toymm" in swept_ops()


def test_an_unknown_op() -> None:
    """The error lists what is known."""
    with pytest.raises(
        RecordError, match="unknown op 'conv'; known ops: addmm, baddbmm, bmm, convolution, flex_attention, "
    ):
        find_op("conv")


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_the_table_is_consistent(op: Op) -> None:
    """Each vendor kernel belongs to one op, and only a batched op has a plain one."""
    owners = [other for other in OPS.values() for uid in (*other.vendors, *other.other_vendors) if uid in op.vendors]
    assert owners == [op] * len(op.vendors)
    assert op.plain is None or (op.is_batched and not OPS[op.plain].is_batched)
