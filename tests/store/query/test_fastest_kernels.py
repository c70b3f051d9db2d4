"""How `diode fastest` writes a kernel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from diode_store.candidates.names import kernel_config
from diode_store.records import Timing

if TYPE_CHECKING:
    from conftest import MakeMeasurement, RunCommand
    from diode_store.warehouse.store import Store

TILE = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 16}
REST = {"num_stages": 3, "num_warps": 4, "GROUP_M": 8}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, "triton::mm"),
        ({**TILE, **REST}, "triton::mm 32x64x16 s3 w4 g8"),
        (TILE, "triton::mm 32x64x16"),
        ({"BLOCK_M": 32, "num_warps": 4}, "triton::mm m32 w4"),
        ({"BLOCK_M": 32, "BLOCK_N": 64}, "triton::mm m32 n64"),
        ({"BLOCK_M": 32, "BLOCK_K": 16, **REST}, "triton::mm m32 k16 s3 w4 g8"),
    ],
)
@pytest.mark.usefixtures("default_database")
def test_a_kernel_is_written_by_what_it_has(
    store: Store, diode: RunCommand, make_measurement: MakeMeasurement, kwargs: dict[str, Any], expected: str
) -> None:
    """A block size that is missing leaves no hole between two x: those that are there then have their letter."""
    store.write([make_measurement(1, timings=(Timing(kernel_config("triton_mm", kwargs), 10.0),))])
    [row] = json.loads(diode("fastest", "--hardware", "h200", "--json").out)
    assert row["kernel"] == expected
