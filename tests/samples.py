"""Records for tests that do not care which."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from diode_store.candidates.names import kernel_config
from diode_store.records import (
    DeviceState,
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Metric,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

H200 = Hardware("nvidia", "NVIDIA H200", "sm_90", 132)
H100 = Hardware("nvidia", "NVIDIA H100 80GB HBM3", "sm_90", 132)
H100_PCIE = Hardware("nvidia", "NVIDIA H100 PCIe", "sm_90", 114)
ENVIRONMENT = Environment(torch="2.11.0+cu130", triton="3.6.0", compute="cuda 13.0", driver="580.95", python="3.12.3")
MEASURED_AT = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)

EVERY_FIELD: dict[str, Any] = {
    "source": Source.SWEEP,
    "host": "gpu-7",
    "device_uuid": "GPU-1",
    "sweep_id": "s1",
    "collector_version": "0.2.0",
    "is_replay": True,
    "search_space": "EXHAUSTIVE",
    "sample_seed": 3,
    "choice_policy": "hook:abc",
    "timing_method": TimingMethod("median", flush_l2=True, launch_hidden=False, regime="read_flush"),
    "family": "llama3-8b",
    "device_state": DeviceState(1980, 2619, 45, "none", 0),
    "flags": ("throttled", "hot"),
    "dataset": "d",
    "licence": "MIT",
    "superseded_by": bytes(range(16)),
    "extra": {"note": "ä", "list": [1, 2.5, None], "map": {"deep": None}},
    "metrics": (Metric("registers_per_thread", "", (None, 32, 255)), Metric("spills", "B", (0.0, None, 1.5))),
}
"""A value for every field of a measurement of three timings that most measurements leave at its default."""


class MakeMeasurement(Protocol):
    """What the fixture ``make_measurement`` is."""

    def __call__(self, number: int = 0, *, runtimes: Sequence[float | None] = ..., **overrides: Any) -> Measurement:
        """Return a measurement."""


def measurement(
    number: int = 0, *, runtimes: Sequence[float | None] = (10.5, 20.25, None), **overrides: Any
) -> Measurement:
    """Return a measurement; every number makes another one.

    Args:
        number: what makes its uid and its problem.
        runtimes: of cuBLAS first, then of Triton configs; None stands for one that ran out of resources.
        overrides: replace its fields.
    """
    fields: dict[str, Any] = {
        "uid": number.to_bytes(16, "big"),
        "hardware": H200,
        "environment": ENVIRONMENT,
        "problem": matmul(64 + number, 256, 128),
        "timings": tuple(_timing(position, runtime) for position, runtime in enumerate(runtimes)),
        "source": Source.IMPORT,
        "measured_at": MEASURED_AT,
    }
    return Measurement(**{**fields, **overrides})


def matmul(m: int, n: int, k: int, dtype: str = "bfloat16") -> Problem:
    """Return the mm of a row-major (m, k) by a row-major (k, n)."""
    return Problem.create("mm", (TensorSpec(dtype, (m, k), (k, 1)), TensorSpec(dtype, (k, n), (n, 1))))


def as_tf32(problem: Problem) -> Problem:
    """Return the same problem with TF32 allowed."""
    return Problem.create(problem.op, problem.inputs, {"ALLOW_TF32": True})


def triton_config(block_m: int = 64, **kwargs: Any) -> KernelConfig:
    """Return a config of ``triton::mm``."""
    defaults = {"BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
    return kernel_config("triton_mm", {**defaults, "ACC_TYPE": "tl.float32", "ALLOW_TF32": False, **kwargs})


def timings_of(times: Mapping[KernelConfig, float | Timing | Outcome]) -> tuple[Timing, ...]:
    """Return timings of configs: from microseconds, from how one failed, or as a whole timing says."""
    return tuple(
        value
        if isinstance(value, Timing)
        else Timing(config, None, value)
        if isinstance(value, Outcome)
        else Timing(config, value)
        for config, value in times.items()
    )


def sql(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Run a statement past our own code, as any other program would, and return its rows."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(query).fetchall()


def _timing(position: int, runtime: float | None) -> Timing:
    config = triton_config(16 * position) if position else kernel_config("mm", {})
    return Timing(config, runtime, Outcome.OUT_OF_RESOURCES if runtime is None else Outcome.OK)
