"""The overview: what was measured, where, and how recently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_explorer.pages.gains import gains
from diode_explorer.pages.page import Page, Parameter
from diode_trainer.report.parts import COUNT, TIME, Column, Link, Table
from diode_trainer.report.questions import Question, where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part
    from diode_trainer.report.questions import Value

MACHINE = Parameter(
    "machine",
    "machine",
    options="SELECT DISTINCT coalesce(host, '(unknown)') AS machine FROM measurements ORDER BY machine",
)
MEASURED_BY = "coalesce(m.host, '(unknown)')"
"""SQL for the machine of a measurement m."""
_SEEN = {"device": "h.name", "torch": "e.torch", "machine": MEASURED_BY}
_STALE = {"device": "h.name", "torch": "stale.torch", "machine": "coalesce(stale.host, '(unknown)')"}


def _devices(filters: Mapping[str, Value]) -> str:
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


def _environments(filters: Mapping[str, Value]) -> str:
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


def _machines(filters: Mapping[str, Value]) -> str:
    return f"""\
SELECT
    {MEASURED_BY} AS machine,
    string_agg(DISTINCT h.name, ', ' ORDER BY h.name) AS devices,
    count(*) AS measurements,
    max(m.measured_at) AS last_measured_at,
    max(m.ingested_at) AS last_ingested_at
FROM measurements AS m
JOIN hardware AS h ON h.id = m.hardware_id
JOIN environments AS e ON e.id = m.environment_id
{where(_SEEN, filters)}GROUP BY ALL
ORDER BY last_ingested_at DESC, machine"""  # noqa: S608 - our own conditions; values are parameters


def _stale(filters: Mapping[str, Value]) -> str:
    return f"""\
WITH measured AS (
    SELECT
        hardware_id,
        problem_id,
        {{
            'taken_at': coalesce(measured_at, ingested_at),
            'id': id,
            'environment_id': environment_id,
            'host': host
        }} AS taken
    FROM measurements
    WHERE superseded_by IS NULL AND NOT is_replay
),
last AS (
    SELECT hardware_id, problem_id, unnest(max(taken)) FROM measured GROUP BY hardware_id, problem_id
),
newest AS (
    SELECT hardware_id, max(taken).environment_id AS environment_id FROM measured GROUP BY hardware_id
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


_DEVICE = Column("device", "device", link=Link({"device": "device"}))
_PROBLEMS, _MEASUREMENTS = Column("problems", "problems", COUNT), Column("measurements", "measurements", COUNT)
_MEASURED = Column("last_measured_at", "last measured, UTC", TIME)


def _parts(asked: Asked) -> Iterator[Part]:
    def question(sql: Callable[[Mapping[str, Value]], str]) -> Question:
        return Question(sql(asked.filters), asked.filters)

    if MACHINE.name not in asked.filters:  # a problem's best time may be of several machines
        yield gains(asked)
    yield from _measured(question(_devices), question(_environments))
    yield from _arrived(question(_machines), question(_stale))


def _measured(devices: Question, environments: Question) -> Iterator[Part]:
    """Yield the tables of devices and environments."""
    yield Table(
        "devices",
        "Devices",
        "Measurements by device, over all environments and without superseded ones.",
        (
            _DEVICE,
            Column("arch", "architecture"),
            Column("environments", "environments", COUNT),
            _PROBLEMS,
            _MEASUREMENTS,
            Column("timings", "timings", COUNT),
            Column("first_measured_at", "first measured, UTC", TIME),
            _MEASURED,
        ),
        devices,
        "Nothing is measured yet. Run `diode-collect`, then `diode-ingest --once`.",
    )
    yield Table(
        "environments",
        "Environments",
        "Times are comparable within one environment.",
        (
            _DEVICE,
            Column("torch", "torch", link=Link({"torch": "torch"})),
            Column("triton", "triton"),
            Column("compute", "CUDA or ROCm"),
            Column("driver", "driver"),
            _PROBLEMS,
            _MEASUREMENTS,
            _MEASURED,
        ),
        environments,
    )


def _arrived(machines: Question, stale: Question) -> Iterator[Part]:
    """Yield the tables of recent and of stale measurements."""
    yield Table(
        "machines",
        "Last intake by machine",
        "Last arrival of each machine's records in the warehouse, including superseded ones and replays.",
        (
            Column("machine", "machine", link=Link({"machine": "machine"})),
            Column("devices", "devices"),
            _MEASUREMENTS,
            _MEASURED,
            Column("last_ingested_at", "last ingested, UTC", TIME),
        ),
        machines,
    )
    yield Table(
        "stale",
        "Stale problems",
        "Problems that were last measured with an older torch or Triton than their device's newest. Filters apply to"
        " that last measurement.",
        (
            _DEVICE,
            Column("op", "op"),
            Column("dtype", "dtype"),
            _PROBLEMS,
            Column("first_measured_at", "oldest, UTC", TIME),
            Column("last_measured_at", "newest, UTC", TIME),
        ),
        stale,
        "Nothing. Every problem was last measured with its device's newest torch and Triton.",
    )


OVERVIEW = Page(
    "overview",
    "Overview",
    "All measurements by device, environment and machine, and how recent they are.",
    (
        Parameter("device", "device", options="SELECT DISTINCT name FROM hardware ORDER BY name"),
        Parameter("torch", "torch", options="SELECT DISTINCT torch FROM environments ORDER BY torch"),
        MACHINE,
    ),
    _parts,
)
