"""Arrival of measurements: in the warehouse by machine, and through this machine's spools."""

from __future__ import annotations

from dataclasses import asdict, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from diode_collectors.spool.quarantine import Kept
from diode_collectors.spool.spool import Spool
from diode_explorer.pages.overview import MACHINE, MEASURED_BY
from diode_explorer.pages.page import Page, Parameter
from diode_store.errors import SpoolError, first_line
from diode_trainer.report.parts import COUNT, DURATION, PROSE, TIME, Column, Note, Picture, Table
from diode_trainer.report.questions import Answer, Question, where
from diode_trainer.report.specification import tips, untitled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from diode_collectors.spool.spool import SpoolStatus
    from diode_explorer.pages.page import Asked
    from diode_trainer.report.parts import Part

_SPANS = {"hour": "1 minute", "day": "15 minutes", "week": "2 hours", "month": "8 hours", "year": "4 days"}
"""Time span before the last arrival → width of a bar."""
_LENGTHS = {"hour": 1 / 24, "day": 1, "week": 7, "month": 31, "year": 366}
"""Length of the time axis, in days."""
_CLOCKS = {"hour": "%H:%M", "day": "%H:%M", "week": "%d %b", "month": "%d %b", "year": "%b %Y"}
"""Time format of the axis."""
_SPAN = "day"
_MACHINE = {"machine": MEASURED_BY}
_HEIGHT = 220
_MOST_KEPT = 100

_ARRIVED = """\
WITH
arrived AS (
    SELECT m.id, m.host, m.measured_at, m.ingested_at
    FROM measurements AS m
    {where}
),
counted AS (
    SELECT measurement_id, count(*) AS timings
    FROM timings
    WHERE measurement_id IN (SELECT id FROM arrived)
    GROUP BY measurement_id
)
"""
_BY_TIME = (
    _ARRIVED
    + """\
SELECT
    time_bucket(INTERVAL '{width}', a.ingested_at) AS began_at,
    began_at + INTERVAL '{width}' AS ended_at,
    count(*) AS measurements,
    coalesce(sum(c.timings), 0)::BIGINT AS timings
FROM arrived AS a
LEFT JOIN counted AS c ON c.measurement_id = a.id
GROUP BY began_at
ORDER BY began_at"""
)
_BY_MACHINE = (
    _ARRIVED
    + """\
SELECT
    coalesce(a.host, '(unknown)') AS machine,
    count(*) AS measurements,
    coalesce(sum(c.timings), 0)::BIGINT AS timings,
    median(epoch(a.ingested_at - a.measured_at)) AS lag_s,
    max(epoch(a.ingested_at - a.measured_at)) AS longest_lag_s,
    max(a.ingested_at) AS last_ingested_at
FROM arrived AS a
LEFT JOIN counted AS c ON c.measurement_id = a.id
GROUP BY machine
ORDER BY last_ingested_at DESC, machine"""
)


def _parts(asked: Asked) -> Iterator[Part]:
    span = str(asked.filters.get("span", _SPAN))
    since = f"m.ingested_at > (SELECT max(ingested_at) FROM measurements) - INTERVAL '1 {span}'"  # noqa: S608 - one of ours
    condition = where(_MACHINE, asked.filters, since).rstrip()
    by_time = Question(_BY_TIME.format(where=condition, width=_SPANS[span]), asked.filters)
    yield Picture(
        "arrivals",
        "Arrivals",
        f"Timings that arrived in the {span} before the last arrival, in bars of {_SPANS[span]}, UTC.",
        by_time,
        lambda rows: _bars(rows, _CLOCKS[span], timedelta(days=_LENGTHS[span])),
        "Nothing has arrived yet. Run `diode-collect`, then `diode-ingest --once`.",
    )
    yield Table(
        "lag",
        "Lag by machine",
        "Time from measurement to warehouse for these arrivals. The lag of an imported measurement is its age.",
        (
            Column("machine", "machine"),
            Column("measurements", "measurements", COUNT),
            Column("timings", "timings", COUNT),
            Column("lag_s", "lag, median", DURATION),
            Column("longest_lag_s", "longest", DURATION),
            Column("last_ingested_at", "last ingested, UTC", TIME),
        ),
        Question(_BY_MACHINE.format(where=condition), asked.filters),
    )
    yield from _spools(asked.spools)


def _spools(spools: Sequence[Path]) -> Iterator[Part]:
    """Yield the contents of this machine's spools, some of which may be unreadable."""
    states: list[SpoolStatus] = []
    kept: list[tuple[Any, ...]] = []
    for path in spools:
        try:
            spool = Spool(path)
            states.append(spool.status())
            for line in states[-1].unreadable:
                yield Note(line, is_alarm=True)
            kept += [(str(path), *asdict(each).values()) for each in spool.quarantined()[:_MOST_KEPT]]
        except SpoolError as error:
            yield Note(first_line(error), is_alarm=True)
    yield Table(
        "spools",
        "Spools of this machine",
        "Segments that wait for diode-ingest on this machine. `diode-ingest dashboard` covers all machines.",
        (
            Column("spool", "spool"),
            Column("daemon", "diode-ingest"),
            Column("waiting", "segments waiting", COUNT),
            Column("oldest_s", "oldest", DURATION),
            Column("live", "being written", COUNT),
            Column("bytes", "bytes", COUNT),
            Column("quarantined", "in quarantine", COUNT),
            Column("quarantine_bytes", "bytes of it", COUNT),
        ),
        Answer(
            ("spool", "daemon", "waiting", "oldest_s", "live", "bytes", "quarantined", "quarantine_bytes"),
            tuple(_row(each) for each in states),
        ),
        "No spool can be read.",
    )
    yield from _rejects(states, kept)


def _rejects(states: Sequence[SpoolStatus], kept: Sequence[tuple[Any, ...]]) -> Iterator[Part]:
    """Yield the contents of the quarantines."""
    reasons = [(str(s.directory), reason, n) for s in states for reason, n in s.quarantined_by_reason.items()]
    yield Table(
        "rejects",
        "Rejects by reason",
        "Records that could not be ingested, in each spool's quarantine.",
        (Column("spool", "spool"), Column("reason", "reason"), Column("files", "files", COUNT)),
        Answer(("spool", "reason", "files"), tuple(reasons)),
        "Nothing is in quarantine.",
    )
    if kept:
        yield Table(
            "quarantine",
            "Quarantine",
            "The newest first. Once the reason is gone, you can put a whole record back into the spool.",
            (
                Column("kept_since", "since, UTC", TIME),
                Column("reason", "reason"),
                Column("message", "what is wrong", PROSE),
                Column("name", "file"),
                Column("bytes", "bytes", COUNT),
                Column("spool", "spool"),
            ),
            Answer(("spool", *(field.name for field in fields(Kept))), tuple(kept)),
        )


def _row(status: SpoolStatus) -> tuple[Any, ...]:
    pid = status.ingest_pid
    daemon = "not running" if pid is None else f"running, pid {pid}" if pid else "running"
    waits = status.segments, status.oldest_s, status.live_segments, status.bytes
    return (str(status.directory), daemon, *waits, status.quarantined, status.quarantine_bytes)


def _bars(rows: list[dict[str, Any]], clock: str, length: timedelta) -> dict[str, Any]:
    """Return timings over time. Rows have began_at, ended_at, measurements and timings."""
    ends = ("began_at", "ended_at")
    end = max(row["ended_at"] for row in rows)
    begin = min(end - length, *(row["began_at"] for row in rows))
    values = [
        row | {name: f"{row[name].isoformat()}Z" for name in ends} | {"from": f"{row['began_at']:%Y-%m-%d %H:%M}"}
        for row in rows
    ]
    content = {
        "height": _HEIGHT,
        "data": {"values": values},
        "mark": {"type": "rect", "style": "model"},
        "encoding": {
            "x": {
                "field": "began_at",
                "type": "temporal",
                # A domain would apply to x2 as well, which has no type; Vega warns about the mismatch.
                "scale": {"type": "utc", "domainMin": _utc(begin), "domainMax": _utc(end)},
                "title": None,
                "axis": {"grid": False, "format": clock},
            },
            "x2": {"field": "ended_at"},
            "y": {"field": "timings", "type": "quantitative", "title": "timings", "axis": {"format": ",d"}},
            "y2": {"datum": 0},
            "tooltip": tips(
                ("from", "from, UTC", None), ("timings", "timings", ","), ("measurements", "measurements", ",")
            ),
        },
    }
    return untitled("Timings that arrived, by time", content)


def _utc(moment: datetime) -> dict[str, str]:
    """Return a time as a Vega expression."""
    return {"expr": f"toDate('{moment.isoformat()}Z')"}


INTAKE = Page(
    "intake",
    "Intake",
    "Arrivals of measurements, and segments that wait or were rejected on this machine.",
    (
        Parameter("span", "time", options=tuple(_SPANS), unset=_SPAN),
        MACHINE,
    ),
    _parts,
    is_live=True,
    is_printed=False,
)
