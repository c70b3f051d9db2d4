"""Ops and problems: the table of ops, and what their inputs mean."""

from diode_store.ops.problem import Dimensions, Problem, ProblemShape, TensorSpec, dimensions_of_text
from diode_store.ops.table import (
    DEFAULT_SCALARS,
    FLOATS,
    FUSED_OPS,
    LAYOUTS,
    MATRIX_DIMENSIONS,
    OPS,
    Op,
    Role,
    find_op,
    op_of_vendor,
    standard_ops,
    swept_ops,
)

__all__ = [
    "DEFAULT_SCALARS",
    "FLOATS",
    "FUSED_OPS",
    "LAYOUTS",
    "MATRIX_DIMENSIONS",
    "OPS",
    "Dimensions",
    "Op",
    "Problem",
    "ProblemShape",
    "Role",
    "TensorSpec",
    "dimensions_of_text",
    "find_op",
    "op_of_vendor",
    "standard_ops",
    "swept_ops",
]
