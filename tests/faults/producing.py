"""Measurements that can be made again from their uid alone, so that whoever compares needs only the uids."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from diode_store.candidates.names import kernel_config
from diode_store.records import (
    DeviceState,
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_HARDWARE = (
    Hardware("nvidia", "NVIDIA H200", "sm_90", 132, 60 * 2**20, 232_448, 150_000_000_000, 4_800_000_000_000, 1980),
    Hardware("nvidia", "NVIDIA H100 PCIe", "sm_90", 114),
    Hardware("amd", "AMD Instinct MI300X", "gfx942", 304, extra={"wave": 64, "note": "ä"}),
)
_ENVIRONMENTS = (
    Environment("2.13.0", "3.6.0", "cuda 13.0", "580.95", "3.12.3", "Linux", {"triton::mm": "ab" * 32}),
    Environment(torch="2.11.0"),
    Environment(torch="2.15.0", os="Linux", extra={"libc": [2, 39]}),
)
_METHODS = (TimingMethod(), TimingMethod("median", flush_l2=True, launch_hidden=False, regime="graph"))
_RARE_DIMENSIONS = 8
_FAILURES = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)


def uid_of(run: int, number: int) -> bytes:
    """Return the uid of the ``number``-th measurement that writer ``run`` makes."""
    return run.to_bytes(8, "big") + number.to_bytes(8, "big")


def number_of(uid: bytes) -> tuple[int, int]:
    """Return the writer and the number of ``uid``."""
    return int.from_bytes(uid[:8], "big"), int.from_bytes(uid[8:], "big")


def produced(uid: bytes) -> Measurement:
    """Return the measurement of ``uid``, the same in every process."""
    rng = random.Random(uid)  # noqa: S311 - the same again is what is wanted
    return Measurement(
        uid=uid,
        hardware=rng.choice(_HARDWARE),
        environment=rng.choice(_ENVIRONMENTS),
        problem=_problem(rng),
        timings=_timings(rng),
        source=rng.choice(list(Source)),
        timing_method=rng.choice(_METHODS),
        device_state=rng.choice((DeviceState(), DeviceState(1980, 2619, -45, "sw_power_cap", 3))),
        **_maybe(rng),
    )


def produce(run: int, numbers: Iterable[int]) -> list[Measurement]:
    """Return some measurements of a writer."""
    return [produced(uid_of(run, number)) for number in numbers]


def _maybe(rng: random.Random) -> dict[str, Any]:
    """Return values for some of the fields that a measurement can do without."""
    values: dict[str, Any] = {
        "measured_at": datetime(2026, 11, 20, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**12)),
        "host": f"gpu-{rng.randrange(9)}",
        "device_uuid": f"GPU-{rng.randrange(99)}",
        "sweep_id": f"s{rng.randrange(99)}",
        "collector_version": "0.2.0",
        "is_replay": True,
        "search_space": "EXHAUSTIVE",
        "sample_seed": rng.randrange(-(2**63), 2**63),
        "choice_policy": "hook:abc",
        "family": "llama3-8b",
        "flags": ("throttled", "hot"),
        "dataset": 'it\'s "d"; \\x\t,\n\u2028 ü',
        "licence": "MIT",
        "superseded_by": rng.randbytes(16),
        "extra": {"list": [1, 2.5, None], "map": {"deep": "ä\\N"}},
    }
    return {name: value for name, value in values.items() if rng.random() < 0.5}


def _problem(rng: random.Random) -> Problem:
    m = 16 * rng.randrange(1, 40) if rng.randrange(_RARE_DIMENSIONS) else rng.randrange(1, 2**20)
    k, n = 64, 8 * rng.randrange(1, 4)
    op, batch = rng.choice((("mm", ()), ("addmm", ()), ("bmm", (4,))))
    row, column = (k, 1), (1, m)
    strides = row if batch else rng.choice((row, column))
    a = TensorSpec("bfloat16", (*batch, m, k), (m * k,) * bool(batch) + strides)
    b = TensorSpec("bfloat16", (*batch, k, n), (k * n,) * bool(batch) + (n, 1))
    bias = (TensorSpec("bfloat16", (n,), (1,)),) if op == "addmm" else ()
    scalars = rng.choice(({}, {"alpha": 0.5, "ALLOW_TF32": True}, {"out_dtype": "float32"}))
    return Problem.create(op, (*bias, a, b), scalars, {"seen": True} if m % 2 else {})


def _timings(rng: random.Random) -> tuple[Timing, ...]:
    configs = dict.fromkeys(_config(rng) for _ in range(rng.randrange(1, 60)))
    return tuple(_timing(rng, config) for config in configs)


def _config(rng: random.Random) -> KernelConfig:
    if not rng.randrange(20):
        return kernel_config(rng.choice(("mm", "addmm", "bmm")), {})
    rare = {} if rng.randrange(_RARE_DIMENSIONS) else {"matrix_instr_nonkdim": rng.randrange(10_000), "kpack": 2}
    blocks = {f"BLOCK_{side}": rng.choice((16, 32, 64, 128)) for side in "MNK"}
    rest = {"GROUP_M": 8, "num_stages": rng.randrange(1, 6), "num_warps": rng.choice((2, 4, 8)), "ALLOW_TF32": False}
    return kernel_config("triton_mm", {**blocks, **rest, "ACC_TYPE": "tl.float32", **rare})


def _timing(rng: random.Random, config: KernelConfig) -> Timing:
    if not rng.randrange(10):
        return Timing(config, None, rng.choice(_FAILURES))
    runtime = rng.lognormvariate(3, 2)
    if rng.randrange(4):
        return Timing(config, runtime)
    return Timing(config, runtime, Outcome.OK, bool(rng.randrange(2)), rng.randrange(1, 100), runtime / 2, runtime * 2)
