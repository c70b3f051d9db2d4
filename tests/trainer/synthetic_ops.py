"""Datasets of scaled, grouped, summed and int8 products, whose times follow from a formula."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from synthetic import H200

from diode_store.candidates.columns import ConfigColumns
from diode_store.ops import OPS
from diode_store.ops.grouping import ROWS
from diode_store.ops.scaling import ROW, TENSOR
from diode_store.records import ProblemShape
from diode_trainer.data.dataset import Examples, ExampleSet, canonical
from diode_trainer.features import CONFIG_FEATURES, config_features, roofline_us

if TYPE_CHECKING:
    from collections.abc import Mapping

    from diode_store.kernels import Scalar

FLOAT8 = "float8_e4m3fn"
NEW_OPS = ("scaled_mm", "grouped_mm", "scaled_grouped_mm", "int_mm", "mm_plus_mm")
TMA = "triton::scaled_mm_device_tma_epilogue_scaling"
_TILES = tuple(product((16, 64, 128), (64, 128, 256), (64, 128)))
_ESTIMATE = CONFIG_FEATURES.index("log_estimate")
_VENDOR_ROOFLINES = 3.0


def shape_of(op: str, m: int, n: int, k: int, *, groups: int = 16, **named: Scalar) -> ProblemShape:
    """Return a problem: of a scaled op with one scale for each operand, of a grouped one with divided rows."""
    entry = OPS[op]
    found: dict[str, Scalar] = {}
    if entry.is_scaled:
        scaling = ROW if entry.is_grouped else TENSOR
        found |= {"scaling": scaling, "fast_accum": True, "out_dtype": "bfloat16"}
    if entry.is_grouped:
        found |= {"form": ROWS, "total": groups * m}
    dtype = FLOAT8 if entry.is_scaled else "int8" if entry.out_dtype else "bfloat16"
    given = tuple(sorted((name, value) for name, value in (found | named).items() if value))
    return ProblemShape(op, dtype, groups if entry.is_grouped else 1, m, n, k, "nt", dimensions=given)


def columns_of(op: str) -> ConfigColumns:
    """Return the vendor kernel and some kernels of each template of an op."""
    entry = OPS[op]
    templates = (entry.template, TMA) if op == "scaled_mm" else (entry.template,)
    group_m = 0 if entry.is_grouped else 8
    rows = [(entry.vendors[0], 0, 0, 0, 0, 0, 0, False)]
    rows += [(name, *tile, group_m, stages, 4, False) for name in templates for tile in _TILES for stages in (3, 4)]
    return ConfigColumns.from_rows(rows)


def example_of(shape: ProblemShape, generator: np.random.Generator, noise: float = 0.01) -> Examples:
    """Return a problem whose Triton times are the features' estimate, and whose vendor kernel takes 3 rooflines."""
    columns = columns_of(shape.op)
    logs = config_features(shape, H200, columns)[:, _ESTIMATE]
    is_vendor = np.arange(len(columns)) == 0
    runtime = roofline_us(shape, H200) * np.where(is_vendor, _VENDOR_ROOFLINES, 2.0**logs)
    runtime = (runtime * np.exp(generator.normal(0, noise, len(columns)))).astype(np.float64)
    return Examples(H200, "one", shape, columns, runtime, is_vendor, np.zeros(len(columns), dtype=np.bool_))


def learnable_ops(each: int = 40, seed: int = 0, ops: tuple[str, ...] = NEW_OPS) -> ExampleSet:
    """Return problems of several ops; grouped ones come with equal groups and with a skew of 1."""
    generator = np.random.default_rng(seed)
    found = []
    for op in ops:
        for number in range(each):
            m, n, k = (16 * int(2 ** generator.uniform(2, 8)) for _ in range(3))
            named: Mapping[str, Scalar] = {"scaling": ROW} if OPS[op].is_scaled and number % 2 else {}
            shape = shape_of(op, m, n, k, **named)
            found.append(example_of(shape, generator))
            if OPS[op].is_grouped:
                skewed = replace(shape, dimensions=tuple(sorted((*shape.dimensions, ("skew", 1.0)))))
                found.append(example_of(skewed, generator))
    return ExampleSet(canonical(found), {"measurements": len(found), "datasets": ["synthetic"]})
