"""A warehouse to measure into, whose views are then asked; configs go by short names."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decided import decision
from diode_store.candidates.names import kernel_config
from diode_store.query import analytics, results
from diode_store.records import KernelConfig, Outcome, Timing
from diode_store.views import view_files
from samples import timings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from conftest import MakeMeasurement
    from diode_store.warehouse.store import Store

VENDOR = kernel_config("mm", {})

A, B, C = (kernel_config("triton_mm", {"BLOCK_M": block, "BLOCK_N": 32, "BLOCK_K": 16}) for block in (64, 128, 256))

TMA = kernel_config("triton_mm_persistent_tma", {"BLOCK_M": 512, "num_stages": 3, "num_warps": 8})

CPP = kernel_config("cpp_CppMicroGemmFP32Vec_0", {})

ALL_COLUMNS = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}

WHOLE = kernel_config("triton_mm", {**ALL_COLUMNS, "ALLOW_TF32": True})

NAMES = {VENDOR: "vendor", A: "A", B: "B", C: "C", TMA: "tma", CPP: "cpp", WHOLE: "whole"}


def estimate(config: KernelConfig, runtime_us: float) -> Timing:
    """Return a timing that was given up early."""
    return Timing(config, runtime_us, is_estimate=True)


class Warehouse:
    """Measures what a test says, and asks the views."""

    def __init__(self, store: Store, url: str, make: MakeMeasurement) -> None:
        self._store = store
        self._url = url
        self._make = make
        self._number = 0

    def measure(self, times: Mapping[KernelConfig, float | Timing | Outcome], **overrides: Any) -> None:
        """Write one measurement: config → microseconds, a whole timing, or how it failed."""
        self._number += 1
        base = self._make(0)
        fields = {"uid": self._number.to_bytes(16, "big"), "timings": timings_of(times), **overrides}
        self._store.write([replace(base, **fields)])

    def decide(self, *kept: tuple[KernelConfig, float | None], **overrides: Any) -> None:
        """Write one decision on the same problem: the configs that were kept, with predicted microseconds."""
        self._number += 1
        base = self._make(0)
        fields = {"hardware": base.hardware, "environment": base.environment, "problem": base.problem, **overrides}
        self._store.write([decision(self._number, *kept, **fields)])

    def ask(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query; config ids become the names in ``NAMES``."""
        with closing(analytics.connect(self._url, views=view_files.views_of(sql))) as connection:
            names = self._config_names(connection)
            result = results.run_query(connection, sql)
            rows = [dict(zip(result.columns, row, strict=True)) for row in result]
        for row in rows:
            for column in row:
                if column == "tie_config_ids":
                    row[column] = [names[number] for number in row[column]]
                elif "config_id" in column:
                    row[column] = names.get(row[column])
        return rows

    def one(self, sql: str) -> dict[str, Any]:
        """Return the only row of a query."""
        [row] = self.ask(sql)
        return row

    @staticmethod
    def _config_names(connection: Any) -> dict[int, str]:
        by_key = {config.key: name for config, name in NAMES.items()}
        rows = connection.execute("SELECT id, key FROM configs").fetchall()
        return {number: by_key[bytes(key)] for number, key in rows}
