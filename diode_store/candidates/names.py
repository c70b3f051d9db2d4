"""One name for one kernel, whichever version of Inductor or file reported it.

Sources name a template differently (``triton_mm_17``, ``mm``, ``triton::mm``), list different keyword arguments, and
write a flag as a bool or as text. ``kernel_config`` maps all of them to one ``KernelConfig``. Golden vectors in the
tests pin the result.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from diode_store.errors import RecordError
from diode_store.kernels import FLAG_COLUMNS, INT_COLUMNS
from diode_store.ops import op_of_vendor
from diode_store.records import KernelConfig, Scalar, plain_scalar
from diode_store.values import checks

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""Short names of dtypes, as people type them → PyTorch's."""
SHORT_DTYPES = {name: short for short, name in DTYPES.items()}

_COLUMN_OF_KWARG = {
    "BLOCK_M": "block_m",
    "BLOCK_N": "block_n",
    "BLOCK_K": "block_k",
    "GROUP_M": "group_m",
    "num_stages": "num_stages",
    "num_warps": "num_warps",
    "ALLOW_TF32": "allow_tf32",
    "USE_FAST_ACCUM": "use_fast_accum",
    "ACC_TYPE": "acc_type",
}

# EVEN_K, the majors, the forms, the scaling, and a convolution's sizes, strides and groups follow from the problem, the
# epilogue and its arguments from the op and its scalars; the others say how Inductor was asked, not what the kernel is.
# So do the options of attention, and the number of splits along the keys, which also follows from the device.
_NOT_THE_KERNEL = frozenset(
    {
        "A_IS_2D",
        "A_IS_K_MAJOR",
        "BLOCKS_ARE_CONTIGUOUS",
        "B_IS_2D",
        "B_IS_K_MAJOR",
        "CONV_STRIDE",
        "EVEN_K",
        "FLOAT32_PRECISION",
        "GQA_SHARED_HEADS",
        "GROUPS",
        "HAS_FULL_BLOCKS",
        "IS_DIVISIBLE",
        *(f"{name}_{axis}" for name in ("KERNEL", "STRIDE", "PADDING") for axis in "DHW"),
        "KERNEL_SIZE",
        "OUTPUT_LOGSUMEXP",
        "OUTPUT_MAX",
        "OUT_DTYPE",
        "PADDING",
        "PRESCALE_QK",
        "QK_HEAD_DIM",
        "QK_HEAD_DIM_ROUNDED",
        "ROWS_GUARANTEED_SAFE",
        "SAFE_HEAD_DIM",
        "SAFE_M_BOUNDARY",
        "SAFE_N_BOUNDARY",
        "SCALED",
        "SCALE_RECIPE_A",
        "SCALE_RECIPE_B",
        "SM_SCALE",
        "SPARSE_KV_BLOCK_SIZE",
        "SPARSE_Q_BLOCK_SIZE",
        "SPLIT_KV",
        "TILE_SIZE_A",
        "TILE_SIZE_B",
        "UNROLL",
        "USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR",
        "V_HEAD_DIM",
        "V_HEAD_DIM_ROUNDED",
        "WRITE_DQ",
        "epilogue_fn_hash",
        "generate_with_caching",
        "hint_override",
        "prefix_args",
        "suffix_args",
    }
)
# Arguments that only some versions or sources list (a choice's description leaves out what its template takes by
# name), with the value that the others imply. Golden vectors hold them to what Inductor says.
_IMPLIED_KWARGS: dict[str, Scalar] = {
    "NUM_CONSUMER_GROUPS": 1,
    "USE_TMA": False,
    "USE_TMA_LOAD": True,
    "num_buffers_warp_spec": 0,
    "num_consumer_groups": 0,
    "tma_load_for_template_epilogue": False,
    "tma_store": False,
    "transpose_discontiguous_tensor_descriptors_override": True,
}
_WORDS: dict[str, Scalar | None] = {"True": True, "False": False, "None": None}

_COUNTER = re.compile(r"_\d+$")
_SUBGRAPH = re.compile(r"^(decompose_k|contiguous_mm|contiguous_addmm)")


def template_uid(name: str) -> str:
    """Return the template uid for ``name``.

    Accepts uids (``triton::mm``), ATen op names (``bias_addmm``), Triton template names with or without
    their counter (``triton_mm_17``), CPP template names (``cpp_CppMicroGemmFP32Vec_0``) and Inductor's subgraph
    choices (``decompose_k_mm_4_split_0``).

    Raises:
        RecordError: ``name`` is none of these.
    """
    if "::" in name:
        return name
    if op_of_vendor(f"aten::{name}"):
        return f"aten::{name}"
    subgraph = _SUBGRAPH.match(name)
    if subgraph:
        return subgraph.group(1)
    prefix, _, rest = name.partition("_")
    if prefix in {"triton", "cpp", "cutlass"} and rest:
        return f"{prefix}::{_COUNTER.sub('', rest)}"
    raise RecordError(
        f"unknown template {checks.shown(name)}; expected an ATen op, triton_NAME, cpp_NAME or a uid such as triton::mm"
    )


def kernel_config(template: str, kwargs: Mapping[str, Any], extra: Mapping[str, Any] | None = None) -> KernelConfig:
    """Build the ``KernelConfig`` of a template's name and its keyword arguments.

    None values, arguments that are not part of the kernel's identity, and arguments at the value that other
    versions imply are dropped.

    Raises:
        RecordError: an unknown template, or an argument of the wrong type.
    """
    columns: dict[str, Any] = {}
    others: dict[str, Scalar] = {}
    for name, raw in kwargs.items():
        value = _WORDS.get(raw, raw) if isinstance(raw, str) else raw
        if value is None or name in _NOT_THE_KERNEL:
            continue
        column = _COLUMN_OF_KWARG.get(name)
        if column is not None:
            columns[column] = _checked(name, column, value)
        elif name not in _IMPLIED_KWARGS or _IMPLIED_KWARGS[name] != value:
            others[name] = _scalar(name, value)
    return KernelConfig(template_uid(template), **columns, kwargs=tuple(sorted(others.items())), extra=extra or {})


def _checked(name: str, column: str, value: object) -> object:
    if column in INT_COLUMNS:
        good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        expected = "a whole number"
    elif column in FLAG_COLUMNS:
        good, expected = isinstance(value, bool), "true or false"
    else:
        good, expected = isinstance(value, str), "a string"
    if not good:
        raise RecordError(f"{name} must be {expected}, not {checks.shown(value)}")
    return value


def _scalar(name: str, value: object) -> Scalar:
    if isinstance(value, float) and not math.isfinite(value):
        raise RecordError(f"{name} must be finite, not {value!r}")
    if isinstance(value, (bool, int, float, str)):
        return plain_scalar(value)
    raise RecordError(f"{name} must be a number, a string or true/false, not {type(value).__name__}")
