"""Which products the kernels of Inductor's templates can index."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.torch_version import TorchVersion

from diode_collectors.inductor import indexing
from diode_collectors.problems.problem import parse_problem


@pytest.mark.parametrize(
    ("shape", "is_beyond"),
    [
        ("mm:46x120401x20327/tn/bf16", True),
        ("mm:46x120401x20327/nt/bf16", False),
        ("addmm:120401x46x20327/tn/bf16", True),
        ("mm:120401x46x20327/nn/bf16", False),
        ("mm:8x65536x32767/nn/bf16", False),
        ("mm:8x65536x32768/nn/bf16", True),
        ("bmm:8x65536x32768:4/nn/bf16", False),  # walks along K by pointers
        ("mm:65536x65536x64/nn/bf16", False),  # C is larger, and has 64 bits
    ],
)
def test_what_kernels_of_older_versions_cannot_index(
    shape: str,
    is_beyond: bool,  # noqa: FBT001 - a parameter of pytest's
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An index along K times the stride there has 32 bits up to torch 2.11."""
    for has_32_bits in (True, False):
        monkeypatch.setattr(indexing, "k_has_32_bits", lambda has=has_32_bits: has)
        assert indexing.overflows(parse_problem(shape).problem()) == (is_beyond and has_32_bits)


def test_strides_count_not_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of a wider matrix are further apart along K than they are many."""
    monkeypatch.setattr(indexing, "k_has_32_bits", lambda: True)
    problem = parse_problem("mm:46x4096x120401/nn/bf16").problem()
    columns = problem.inputs[1]._replace(stride=(20480, 1))
    assert not indexing.overflows(problem)
    assert indexing.overflows(replace(problem, inputs=(problem.inputs[0], columns)))


@pytest.mark.parametrize(
    ("version", "is_older"), [("2.9.1", True), ("2.11.0+cu130", True), ("2.12.0", False), ("2.15.1+cpu", False)]
)
def test_which_torch_has_the_older_templates(version: str, *, is_older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 2.12 have 64 bits where a matrix needs them; versions are compared, not their texts."""
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    assert indexing.k_has_32_bits.__wrapped__() == is_older
