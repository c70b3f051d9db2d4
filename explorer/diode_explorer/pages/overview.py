"""The first page: what there is, from where, and how fresh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_explorer.pages.page import COUNT, TIME, Column, Page, Table, where

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEEN = {"device": "h.name", "torch": "e.torch", "machine": "coalesce(m.host, '(not said)')"}
_STALE = {"device": "h.name", "torch": "stale.torch", "machine": "coalesce(stale.host, '(not said)')"}


def _devices(filters: Mapping[str, str]) -> str:
    return f"""\
WITH counted AS (
    SELECT measurement_id, count(*) AS timings FROM timings GROUP BY measurement_id
)
SELECT
    h.name AS device,
    h.arch,
    count(DISTINCT m.environment_id) AS environments,
    count(DISTINCT m.problem_id) AS problems,
    count(*) AS measurements,
    coalesce(sum(c.timings), 0)::BIGINT AS timings,
    min(m.measured_at) AS first_measured_at,
    max(m.measured_at) AS last_measured_at
FROM (FROM measurements WHERE superseded_by IS NULL) AS m
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
LEFT JOIN counted AS c ON c.measurement_id = m.id
{where(_SEEN, filters)}GROUP BY h.name, h.arch
ORDER BY timings DESC, device, h.arch"""  # noqa: S608 - our own conditions; values are parameters


def _environments(filters: Mapping[str, str]) -> str:
    return f"""\
SELECT
    h.name AS device,
    e.torch,
    e.triton,
    e.compute,
    e.driver,
    count(DISTINCT m.problem_id) AS problems,
    count(*) AS measurements,
    max(m.measured_at) AS last_measured_at
FROM (FROM measurements WHERE superseded_by IS NULL) AS m
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
{where(_SEEN, filters)}GROUP BY h.name, e.torch, e.triton, e.compute, e.driver
ORDER BY last_measured_at DESC, device, e.torch, e.triton, e.compute, e.driver"""  # noqa: S608 - our own conditions; values are parameters


def _machines(filters: Mapping[str, str]) -> str:
    return f"""\
SELECT
    coalesce(m.host, '(not said)') AS machine,
    string_agg(DISTINCT h.name, ', ' ORDER BY h.name) AS devices,
    count(*) AS measurements,
    max(m.measured_at) AS last_measured_at,
    max(m.ingested_at) AS last_ingested_at
FROM measurements AS m
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
{where(_SEEN, filters)}GROUP BY ALL
ORDER BY last_ingested_at DESC, machine"""  # noqa: S608 - our own conditions; values are parameters


def _stale(filters: Mapping[str, str]) -> str:
    return f"""\
WITH measured AS (
    SELECT hardware_id, problem_id, environment_id, host, coalesce(measured_at, ingested_at) AS taken_at
    FROM measurements
    WHERE superseded_by IS NULL AND NOT is_replay
),
last AS (
    SELECT
        hardware_id,
        problem_id,
        arg_max(environment_id, taken_at) AS environment_id,
        arg_max(host, taken_at) AS host,
        max(taken_at) AS taken_at
    FROM measured
    GROUP BY hardware_id, problem_id
),
newest AS (
    SELECT hardware_id, arg_max(environment_id, taken_at) AS environment_id FROM measured GROUP BY hardware_id
),
stale AS (
    SELECT last.*, was.torch
    FROM last
    JOIN newest USING (hardware_id)
    JOIN environments AS now ON now.id = newest.environment_id
    JOIN environments AS was ON was.id = last.environment_id
    WHERE (was.torch, was.triton) IS DISTINCT FROM (now.torch, now.triton)
)
SELECT
    h.name AS device,
    p.op,
    p.dtype,
    count(*) AS problems,
    min(stale.taken_at) AS first_measured_at,
    max(stale.taken_at) AS last_measured_at
FROM stale
JOIN hardware AS h ON h.id = stale.hardware_id
JOIN problems AS p ON p.id = stale.problem_id
{where(_STALE, filters)}GROUP BY h.name, p.op, p.dtype
ORDER BY problems DESC, device, p.op, p.dtype"""  # noqa: S608 - our own conditions; values are parameters


_DEVICE, _MEASURED = Column("device", link="device"), Column("last measured, UTC", TIME)
_PROBLEMS, _MEASUREMENTS = Column("problems", COUNT), Column("measurements", COUNT)
OVERVIEW = Page(
    "overview",
    "Overview",
    "What has been measured, on which devices and machines, and how fresh it is.",
    (
        Table(
            "devices",
            "Devices",
            "What was measured on each, whatever the environment; superseded measurements are left out.",
            (
                _DEVICE,
                Column("architecture"),
                Column("environments", COUNT),
                _PROBLEMS,
                _MEASUREMENTS,
                Column("timings", COUNT),
                Column("first measured, UTC", TIME),
                _MEASURED,
            ),
            _devices,
            "Nothing is measured yet. diode-collect measures, diode-ingest brings it here.",
        ),
        Table(
            "environments",
            "Environments",
            "Times are comparable within one environment.",
            (
                _DEVICE,
                Column("torch", link="torch"),
                Column("triton"),
                Column("CUDA or ROCm"),
                Column("driver"),
                _PROBLEMS,
                _MEASUREMENTS,
                _MEASURED,
            ),
            _environments,
        ),
        Table(
            "machines",
            "Last intake by machine",
            "When records of each machine last arrived in the warehouse, superseded ones and replays among them.",
            (
                Column("machine", link="machine"),
                Column("devices"),
                _MEASUREMENTS,
                _MEASURED,
                Column("last ingested, UTC", TIME),
            ),
            _machines,
        ),
        Table(
            "stale",
            "What is stale",
            "Problems whose last measurement is of another torch or Triton than the newest one of their device. Filters"
            " ask where and with what that last measurement was made.",
            (
                _DEVICE,
                Column("op"),
                Column("dtype"),
                _PROBLEMS,
                Column("oldest, UTC", TIME),
                Column("newest, UTC", TIME),
            ),
            _stale,
            "Nothing: every problem was last measured with the newest torch and Triton of its device.",
        ),
    ),
    {"device": "device", "torch": "torch", "machine": "machine"},
)
