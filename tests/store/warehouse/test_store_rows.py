from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from any_database import moment, rows

import samples
from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.records import Environment, KernelConfig, Metric, Outcome, Timing
from diode_store.warehouse.store import Store, WriteReport
from diode_store.wire import codec

if TYPE_CHECKING:
    from pathlib import Path


def test_every_field_is_stored(any_store: Store, any_url: str) -> None:
    """Each field of a measurement is in its column, times in UTC, and what is empty is NULL."""
    there = samples.MEASURED_AT.astimezone(timezone(timedelta(hours=9)))
    fields = samples.EVERY_FIELD | {"metrics": (Metric("spills", "B", (8,)),)}
    any_store.write([samples.measurement(7, runtimes=(1.5,), measured_at=there, **fields)])
    expected = {
        "uid": bytes(15) + b"\7",
        "source": "sweep",
        "host": "gpu-7",
        "device_uuid": "GPU-1",
        "sweep_id": "s1",
        "collector_version": "0.2.0",
        "is_replay": 1,
        "search_space": "EXHAUSTIVE",
        "sample_seed": 3,
        "choice_policy": "hook:abc",
        "statistic": "median",
        "flush_l2": 1,
        "launch_hidden": 0,
        "regime": "read_flush",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "temperature_c": 45,
        "throttle_reasons": "none",
        "foreign_processes": 0,
        "flags": "throttled,hot",
        "family": "llama3-8b",
        "dataset": "d",
        "licence": "MIT",
        "superseded_by": bytes(range(16)),
        "extra": r'{"note": "\u00e4", "list": [1, 2.5, null], "map": {"deep": null}}',
    }
    columns = ", ".join(expected)
    assert rows(any_url, f"SELECT {columns} FROM measurements") == [tuple(expected.values())]  # noqa: S608 - our own column names
    [(measured, ingested)] = rows(any_url, "SELECT measured_at, ingested_at FROM measurements")
    assert moment(measured) == samples.MEASURED_AT
    assert timedelta() <= datetime.now(UTC) - moment(ingested) < timedelta(minutes=1)


def test_what_is_absent_is_null(any_store: Store, any_url: str) -> None:
    """Empty maps and absent values are NULL, not empty JSON or text, so that a query can tell."""
    any_store.write([samples.measurement(measured_at=None)])
    nulls = "measured_at, host, sample_seed, statistic, regime, family, flags, superseded_by, extra"
    assert rows(any_url, f"SELECT {nulls} FROM measurements") == [(None,) * 9]  # noqa: S608 - likewise
    for table in ("hardware", "environments", "problems", "configs", "timings"):
        assert {row[0] for row in rows(any_url, f"SELECT extra FROM {table}")} == {None}  # noqa: S608 - likewise


def test_timings_are_stored_by_config(any_store: Store, any_url: str) -> None:
    """A timing is found by its config's columns; a failure has an outcome and no time."""
    timings = (
        Timing(KernelConfig("aten::mm"), 39.5, Outcome.OK, False, 40, 39.0, 41.25),  # noqa: FBT003 - a row
        Timing(samples.triton_config(64, TMA_SIZE=128), 120, Outcome.OK, is_estimate=True),
        Timing(samples.triton_config(128), None, Outcome.COMPILE_ERROR),
    )
    any_store.write([samples.measurement(timings=timings)])
    query = (
        "SELECT template, block_m, allow_tf32, acc_type, kwargs, runtime_us, outcome, is_estimate, repeats, p10_us,"
        " p90_us FROM timings JOIN configs ON config_id = configs.id ORDER BY template, block_m"
    )
    assert rows(any_url, query) == [
        ("aten::mm", None, None, None, "[]", 39.5, "ok", 0, 40, 39.0, 41.25),
        ("triton::mm", 64, 0, "tl.float32", '[["TMA_SIZE", 128]]', 120.0, "ok", 1, None, None, None),
        ("triton::mm", 128, 0, "tl.float32", "[]", None, "compile_error", 0, None, None, None),
    ]


def test_problem_columns(any_store: Store, any_url: str) -> None:
    """A problem's derived columns and its inputs are both there."""
    any_store.write([samples.measurement(0)])
    assert rows(any_url, "SELECT op, dtype, b, m, n, k, layout, inputs, scalars FROM problems") == [
        (
            "mm",
            "bfloat16",
            1,
            64,
            256,
            128,
            "nn",
            '[["bfloat16", [64, 128], [128, 1]], ["bfloat16", [128, 256], [256, 1]]]',
            "[]",
        )
    ]


def test_dimension_rows_are_inserted_in_key_order(any_store: Store, any_url: str) -> None:
    """Rows go in sorted by key, which is what keeps concurrent writers from deadlocks."""
    any_store.write([samples.measurement(number) for number in range(20)])
    for table in ("problems", "configs"):
        keys = [row[0] for row in rows(any_url, f"SELECT key FROM {table} ORDER BY id")]  # noqa: S608 - likewise
        assert keys == sorted(keys)


def test_what_a_newer_writer_adds_is_kept(any_store: Store, any_url: str) -> None:
    """The extra of every record is in its own table, and survives the wire."""
    measurement = samples.measurement(
        hardware=replace(samples.H200, extra={"nvlink": 18}),
        environment=replace(samples.ENVIRONMENT, template_hashes={"triton::mm": "d4b9"}, extra={"container": "x"}),
        problem=replace(samples.matmul(1, 2, 3), extra={"unpadded": [1]}),
        timings=(Timing(replace(samples.triton_config(), extra={"cluster": 2}), 1.0),),
        extra={"attempt": 3},
    )
    any_store.write([codec.decode(codec.encode(measurement))])
    kept = {
        table: json.loads(rows(any_url, f"SELECT extra FROM {table}")[0][0])  # noqa: S608 - likewise
        for table in ("hardware", "environments", "problems", "configs", "measurements")
    }
    assert kept == {
        "hardware": {"nvlink": 18},
        "environments": {"container": "x"},
        "problems": {"unpadded": [1]},
        "configs": {"cluster": 2},
        "measurements": {"attempt": 3},
    }
    assert rows(any_url, "SELECT template_hashes FROM environments") == [('{"triton::mm": "d4b9"}',)]


def test_unknown_attributes_are_filled_in_later(any_store: Store, any_url: str) -> None:
    """A device first seen without details gets them from the first record that brings them; they do not change."""
    any_store.write([samples.measurement(1)])
    any_store.write([samples.measurement(2, hardware=replace(samples.H200, l2_bytes=62914560, extra={"a": 1}))])
    any_store.write([samples.measurement(3, hardware=replace(samples.H200, l2_bytes=1, memory_bytes=141 * 10**9))])
    any_store.write([samples.measurement(4)])
    assert rows(any_url, "SELECT l2_bytes, memory_bytes, max_clock_mhz, extra FROM hardware") == [
        (62914560, 141 * 10**9, None, '{"a": 1}')
    ]
    assert any_store.counts()["hardware"] == 1


def test_environment_attributes_are_filled_in_later(any_store: Store, any_url: str) -> None:
    """Template hashes that an import did not know come with the first collector that does."""
    any_store.write([samples.measurement(1, environment=Environment(torch="2.11"))])
    any_store.write(
        [samples.measurement(2, environment=Environment(torch="2.11", template_hashes={"triton::mm": "d4"}))]
    )
    assert rows(any_url, "SELECT torch, template_hashes FROM environments") == [("2.11", '{"triton::mm": "d4"}')]


def test_template_hashes_are_gathered(any_store: Store, any_url: str) -> None:
    """Each measurement knows the templates that it timed; the row has all of them, each as it was first told."""
    told = [{"triton::mm": "d4"}, {"triton::bmm": "16"}, {}, {"triton::mm": "ff", "triton::tma": "54"}]
    environments = [Environment(torch="2.11", template_hashes=hashes) for hashes in told]
    any_store.write([samples.measurement(1, environment=environments[0])])
    any_store.write([samples.measurement(n, environment=each) for n, each in enumerate(environments[1:], 2)])
    [(text,)] = rows(any_url, "SELECT template_hashes FROM environments")
    assert json.loads(text) == {"triton::mm": "d4", "triton::bmm": "16", "triton::tma": "54"}
    [(again,)] = rows(any_url, "SELECT count(*) FROM environments")
    assert again == 1


def test_config_extra_is_filled_in_later(any_store: Store, any_url: str) -> None:
    """A config known from an old writer gets what a newer one adds to it, in another batch or the same one."""
    config = samples.triton_config()
    newer = replace(config, extra={"cluster": 2})
    any_store.write([samples.measurement(1, timings=(Timing(config, 1.0),))])
    any_store.write([samples.measurement(n, timings=(Timing(c, 1.0),)) for n, c in ((2, config), (3, newer))])
    assert rows(any_url, "SELECT extra FROM configs") == [('{"cluster": 2}',)]
    assert any_store.counts()["timings"] == 3


def test_real_data(any_store: Store, any_url: str, jsonl_path: Path) -> None:
    """Six problems measured on an H200 keep their shapes, their winners and their failures."""
    context = ImportContext(hardware=samples.H200)
    with jsonl_path.open("rb") as lines:
        measurements = [found for found in jsonl.read(lines, context) if not isinstance(found, BadLine)]
    assert any_store.write(measurements) == WriteReport(6, 0, 79)
    assert any_store.counts()["failures"] == 10
    fastest = (
        "SELECT op, b, m, layout, template, runtime_us FROM (SELECT op, b, m, layout, template, runtime_us,"
        " row_number() OVER (PARTITION BY problem_id ORDER BY runtime_us) AS place FROM measurements"
        " JOIN problems ON problem_id = problems.id JOIN timings ON measurement_id = measurements.id"
        " JOIN configs ON config_id = configs.id WHERE runtime_us IS NOT NULL) AS ranked WHERE place = 1"
    )
    assert sorted(rows(any_url, fastest)) == [
        ("addmm", 1, 1024, "nt", "aten::bias_addmm", 127.2),
        ("bmm", 4096, 49, "nt", "triton::bmm", 24.704),
        ("mm", 1, 30, "nn", "aten::mm", 10.656),
        ("mm", 1, 280, "tn", "triton::mm", 6.592),
        ("mm", 1, 8192, "nt", "aten::mm", 578.24),
        ("mm", 1, 61568, "nn", "aten::mm", 25.44),
    ]
