"""The kernels of the warehouse that the tests of `diode query` and `diode fastest` ask."""

from __future__ import annotations

from diode_store.candidates.names import kernel_config

VENDOR = kernel_config("mm", {})
FAST = kernel_config(
    "triton_mm",
    {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 4, "num_warps": 8},
)
SLOW = kernel_config("triton_mm_persistent_tma", {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3})
