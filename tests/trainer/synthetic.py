"""Datasets whose best configs follow from their features, so that a short fit can learn them."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

import samples
from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.known import known_device
from diode_store.records import Environment, Hardware, Measurement, ProblemShape, Source, Timing
from diode_trainer.data.dataset import Examples, ExampleSet, canonical
from diode_trainer.features import CONFIG_FEATURES, config_features, roofline_us
from diode_trainer.training.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

QUICK = Recipe("deep", (16, 16), members=2, epochs=10, patience=0)
"""What learns ``learnable`` problems in a moment."""
H200 = known_device("NVIDIA H200") or Hardware("nvidia", "NVIDIA H200", "sm_90", 132)
MM = ProblemShape("mm", "bfloat16", 1, 1024, 1024, 1024, "nn")
VENDOR_ROW = ("aten::mm", 0, 0, 0, 0, 0, 0, False)
TILES = ((16, 64, 64), (32, 32, 128), (64, 32, 32), (64, 64, 64), (64, 128, 64), (128, 128, 32), (128, 256, 64))
TRITON_ROWS = tuple(("triton::mm", m, n, k, 8, stages, 4, False) for m, n, k in TILES for stages in (2, 4))
LONG = ConfigColumns.from_rows(
    [VENDOR_ROW]
    + [
        ("triton::mm", m, n, k, 8, stages, warps, False)
        for m, n, k in product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128))
        for stages, warps in product((1, 2, 3, 4), (2, 4, 8))
    ]
)
"""A list as long as Inductor's EXHAUSTIVE one: 1,201 configs."""
_ESTIMATE = CONFIG_FEATURES.index("log_estimate")


def columns(*rows: tuple[object, ...]) -> ConfigColumns:
    """Return the configs of ``rows``; the vendor's and ``TRITON_ROWS`` unless given."""
    return ConfigColumns.from_rows(rows or (VENDOR_ROW, *TRITON_ROWS))


def examples(
    runtimes: Sequence[float], shape: ProblemShape = MM, *, estimates: Sequence[bool] | None = None
) -> Examples:
    """Return one problem: the vendor's kernel first, then Triton's; inf stands for a failure."""
    chosen = columns(VENDOR_ROW, *TRITON_ROWS[: len(runtimes) - 1])
    return Examples(
        hardware=H200,
        environment="one",
        shape=shape,
        columns=chosen,
        runtime_us=np.array(runtimes, dtype=np.float64),
        is_vendor=np.arange(len(runtimes)) == 0,
        is_estimate=np.array(estimates if estimates is not None else [False] * len(runtimes)),
    )


def learnable(problems: int = 24, seed: int = 0) -> ExampleSet:
    """Return problems whose Triton times are what the features' estimate says, and whose vendor takes 4 rooflines."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(problems):
        m, n, k = (int(2 ** generator.uniform(5, 12)) for _ in range(3))
        shape = ProblemShape("mm", "bfloat16", 1, m, n, k, "nn")
        chosen = columns()
        roofline = roofline_us(shape, H200)
        logs = config_features(shape, H200, chosen)[:, _ESTIMATE]
        runtime = roofline * np.where(chosen.template_mask(lambda t: t == "aten::mm"), 4.0, 2.0**logs)
        runtime *= np.exp(generator.normal(0, 0.01, len(chosen)))
        is_estimate = runtime > 3 * runtime.min()
        found.append(
            Examples(H200, "one", shape, chosen, runtime.astype(np.float64), np.arange(len(chosen)) == 0, is_estimate)
        )
    return ExampleSet(canonical(found), {"measurements": problems, "datasets": ["synthetic"]})


def measurement_of(number: int, example: Examples) -> Measurement:
    """Return the measurement whose examples are ``example``."""
    s = example.shape
    times = zip(example.runtime_us.tolist(), example.is_estimate.tolist(), strict=True)
    timings = [
        Timing(example.columns.config(i), runtime, is_estimate=is_estimate)
        for i, (runtime, is_estimate) in enumerate(times)
    ]
    return Measurement(
        uid=number.to_bytes(16, "big"),
        hardware=H200,
        environment=Environment(torch="2.13.0"),
        problem=samples.matmul(s.m, s.n, s.k, s.dtype),
        timings=tuple(timings),
        source=Source.SWEEP,
        dataset="synthetic",
    )


def contents(dataset: ExampleSet) -> list[tuple[object, ...]]:
    """Return everything of a dataset but how its environments are called."""
    return [
        (
            e.hardware.key,
            e.shape,
            [e.columns.templates[i] for i in e.columns.template_index],
            np.stack([e.columns.block_m, e.columns.num_warps, e.columns.num_stages]).tolist(),
            e.runtime_us.tolist(),
            e.is_vendor.tolist(),
            e.is_estimate.tolist(),
            e.family,
            e.regime,
            e.usual_sigmas,
        )
        for e in dataset
    ]
