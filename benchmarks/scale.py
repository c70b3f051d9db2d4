"""Make a warehouse of any size to measure on: the first bundled data set multiplied, with the same rows every time.

Each bundled problem becomes many with other numbers of rows. Each of these is measured on one or two of four devices,
in one or two environments, some of them repeatedly. They have the configs of the bundled measurement, and times with
realistic scatter. Some timings fail; some measurements are replays, flagged, superseded or made by a hook. Bare
``executemany`` writes the rows, and a sync makes the cache.

    python benchmarks/scale.py /tmp/warehouse.db --timings 10000000
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sqlite3
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import shipped_data
import sqlalchemy as sa

from diode_store.cache.cache import Cache, cache_path
from diode_store.cache.sync import sync
from diode_store.devices.known import known_device
from diode_store.records import Hardware, Problem, TensorSpec, TimingMethod
from diode_store.timing.noise import band_of, sigmas_of
from diode_store.warehouse import migrate, schema
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.dimensions import config_values, environment_values, hardware_values, problem_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from diode_store.records import KernelConfig, Measurement

PROBLEMS_PER_MEASUREMENT = 0.25
ROWS_STEP = 8
"""Difference in rows between variants of a problem."""
DEVICES = {"NVIDIA H200": 1.0, "NVIDIA H100 80GB HBM3": 1.08, "NVIDIA A100-SXM4-80GB": 2.2, "NVIDIA L40S": 2.9}
"""Time relative to an H200, by device."""
NEWER = {"torch": "2.13.0+cu130", "triton": "3.7.0"}
FAILING = 0.02
"""Share of timings that fail."""
REPLAYED, FLAGGED, SUPERSEDED, HOOKED = 0.02, 0.01, 0.005, 0.01
"""Shares of measurements."""
METHOD = TimingMethod("median", flush_l2=True, launch_hidden=True, regime="write_flush")
SCATTER = [sigma / math.sqrt(2) for sigma in sigmas_of(METHOD)]
"""Standard deviation of the logarithm of one time, by band; a ratio of two times scatters more by the square root of
two.
"""
_INSERT = (
    "INSERT INTO timings (measurement_id, config_id, runtime_us, outcome, is_estimate, repeats, p10_us, p90_us) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


def main() -> None:
    """Make a warehouse and its cache, and print the seconds of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path, help="new SQLite file to make")
    parser.add_argument("--timings", type=int, default=10_000_000, help="about how many")
    options = parser.parse_args()
    if options.database.exists():
        raise SystemExit(f"{options.database} exists; remove it first")
    options.database.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    timings = fill(str(options.database), options.timings)
    print(f"{timings:,} timings written in {time.perf_counter() - begin:.1f} s")
    report = sync(str(options.database), Cache(cache_path(str(options.database))))
    print(f"{report.timings:,} timings synced in {report.seconds:.1f} s")


def fill(database: str, timings: int, seed: int = 0) -> int:
    """Make a warehouse of about ``timings`` timings; return their exact number."""
    engine = make_engine(database)
    migrate.upgrade(engine)
    plan = _Plan(shipped_data.measurements(), timings, seed)
    with engine.begin() as connection:
        for table, rows in plan.dimensions():
            connection.execute(sa.insert(table), list(rows))
        connection.execute(sa.insert(schema.measurements), list(plan.measurements()))
    engine.dispose()
    written = 0
    with sqlite3.connect(database) as bare:
        bare.execute("PRAGMA synchronous = OFF")
        for number in range(plan.count):
            rows = plan.timings(number)
            bare.executemany(_INSERT, rows)
            written += len(rows)
    bare.close()
    return written


@dataclass(frozen=True)
class _Base:
    """A bundled measurement as columns, with configs by number in ascending order."""

    problem: Problem
    config_ids: list[int]
    runtime_us: NDArray[np.float64]
    is_estimate: list[int]
    repeats: list[int | None]
    scatter: NDArray[np.float64]


class _Plan:
    """Plan of what is measured where; every row follows from its number and the seed."""

    def __init__(self, bundled: Sequence[Measurement], timings: int, seed: int) -> None:
        self._seed = seed
        self._configs = {t.config: None for m in bundled for t in m.timings}
        numbers = {config: number for number, config in enumerate(self._configs, start=1)}
        self._bases = [_base(m, numbers) for m in bundled]
        self.count = max(1, round(timings * len(bundled) / sum(len(m.timings) for m in bundled)))
        self._problems = max(1, round(self.count * PROBLEMS_PER_MEASUREMENT))
        first = bundled[0].environment
        self._environments = (first, replace(first, **NEWER))
        self._hardware = [_device(name, bundled[0].hardware) for name in DEVICES]
        # Some kernels always fail on the smaller devices.
        self._fails = np.random.default_rng(seed).random((len(self._hardware), len(numbers) + 1)) < FAILING
        # A newer compiler makes some kernels faster and others slower.
        self._newer = np.exp(np.random.default_rng(seed + 1).normal(0, 0.03, len(numbers) + 1))

    def dimensions(self) -> Iterator[tuple[sa.Table, Iterator[dict[str, Any]]]]:
        yield schema.hardware, _numbered(hardware_values(device) for device in self._hardware)
        yield schema.environments, _numbered(environment_values(e) for e in self._environments)
        yield schema.problems, _numbered(problem_values(problem) for problem in self._variants())
        yield schema.configs, _numbered(config_values(config) for config in self._configs)

    def _variants(self) -> Iterator[Problem]:
        """Yield distinct problems."""
        seen: set[bytes] = set()
        for number in range(self._problems):
            variant, base = divmod(number, len(self._bases))
            rows = ROWS_STEP * variant
            while (problem := _with_more_rows(self._bases[base].problem, rows)).key in seen:
                rows += 1
            seen.add(problem.key)
            yield problem

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return the problem, device and environment of a measurement, counted from 0.

        Every problem is measured on its own device first, then again or in the newer environment, then on another
        device.
        """
        turn, problem = divmod(number, self._problems)
        device = (problem + (problem // 7 if turn > 1 else 0)) % len(self._hardware)
        newer = (turn % 2 == 1) and problem % 3 != 0
        return problem, device, int(newer)

    def measurements(self) -> Iterator[dict[str, Any]]:
        marks = np.random.default_rng(self._seed + 2).random((self.count, 4))
        for number in range(self.count):
            problem, device, environment = self._place(number)
            replayed, flagged, superseded, hooked = marks[number]
            at = _START + timedelta(seconds=20 * number)
            yield {
                "id": number + 1,
                "uid": _uid(self._seed, number),
                "hardware_id": device + 1,
                "environment_id": environment + 1,
                "problem_id": problem + 1,
                "source": "sweep",
                "measured_at": at,
                "ingested_at": at + timedelta(minutes=1),
                "sweep_id": f"{number // 1000:032x}",
                "is_replay": bool(replayed < REPLAYED),
                "search_space": "EXHAUSTIVE",
                "sample_seed": 0,
                "choice_policy": "hook:abc" if hooked < HOOKED else "stock",
                **vars(METHOD),
                "sm_clock_mhz": 1980,
                "temperature_c": 42,
                "flags": "throttled" if flagged < FLAGGED else None,
                "dataset": "scale",
                "superseded_by": _uid(self._seed, number + 1) if superseded < SUPERSEDED else None,
            }

    def timings(self, number: int) -> list[tuple[Any, ...]]:
        """Return the rows of ``timings`` of a measurement."""
        problem, device, environment = self._place(number)
        variant, which = divmod(problem, len(self._bases))
        base = self._bases[which]
        random = np.random.default_rng((self._seed, number))
        count = len(base.config_ids)
        ids = np.array(base.config_ids)
        scatter = base.scatter
        factor = list(DEVICES.values())[device] * (1 + 0.02 * variant)
        times = base.runtime_us * factor * np.exp(random.normal(0, 1, count) * scatter)
        times = np.round(times * self._newer[ids] if environment else times, 3)
        failed = self._fails[device, ids].tolist()
        ok, p10, p90 = times.tolist(), np.round(times * 0.97, 3).tolist(), np.round(times * 1.03, 3).tolist()
        return [
            (number + 1, config, None, "out_of_resources", 0, None, None, None)
            if fails
            else (number + 1, config, us, "ok", guess, repeats, low, high)
            for config, us, fails, guess, repeats, low, high in zip(
                base.config_ids, ok, failed, base.is_estimate, base.repeats, p10, p90, strict=True
            )
        ]


def _base(measurement: Measurement, numbers: dict[KernelConfig, int]) -> _Base:
    timings = sorted((t for t in measurement.timings if t.runtime_us is not None), key=lambda t: numbers[t.config])
    times = [t.runtime_us for t in timings if t.runtime_us is not None]
    return _Base(
        measurement.problem,
        [numbers[t.config] for t in timings],
        np.array(times),
        [int(t.is_estimate) for t in timings],
        [t.repeats for t in timings],
        np.array([SCATTER[band_of(us)] for us in times]),
    )


def _device(name: str, bundled: Hardware) -> Hardware:
    return bundled if name == bundled.name else known_device(name) or bundled


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return ({"id": number, **row} for number, row in enumerate(rows, start=1))


def _uid(seed: int, number: int) -> bytes:
    return hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=16).digest()


def _with_more_rows(problem: Problem, rows: int) -> Problem:
    """Return a problem with ``rows`` more rows in its first matrix, and in operands with the rows of the result."""
    if not rows:
        return problem
    m = problem.shape.m
    matrices = problem.inputs
    # The second matrix is last; its rows are the summed dimension.
    grown = [_taller(spec, rows) if spec.size[-2] == m else spec for spec in matrices[:-1]]
    return Problem(problem.op, (*grown, matrices[-1]), problem.scalars)


def _taller(spec: TensorSpec, rows: int) -> TensorSpec:
    """Return a dense matrix with more rows; the memory order of dimensions and broadcasts stay."""
    size = (*spec.size[:-2], spec.size[-2] + rows, spec.size[-1])
    stride = list(spec.stride)
    step = 1
    for axis in sorted(range(len(size)), key=lambda axis: (spec.stride[axis], -axis)):
        if spec.stride[axis]:
            stride[axis] = step
            step *= size[axis]
    return TensorSpec(spec.dtype, size, tuple(stride))


if __name__ == "__main__":
    main()
