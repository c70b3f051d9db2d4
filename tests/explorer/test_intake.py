"""The page of what arrives: from a real warehouse and a real spool."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import samples
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.spool.writer import SpoolWriter
from diode_explorer.feed import Feed
from diode_explorer.pages.intake import INTAKE
from diode_explorer.rendering import shown
from diode_explorer.visit import Visit
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from diode_explorer.rendering import Shown
    from diode_trainer.report.questions import Value


def parts(feed: Feed, spools: tuple[Path, ...] = (), **filters: Value) -> dict[str, Shown]:
    """Return what the page shows, by name."""
    visit = Visit(feed.state, filters, spools)
    return {each.part.name: each for each in shown(INTAKE.parts(visit), visit)}


def rows(part: Shown) -> list[dict[str, object]]:
    """Return a part's rows."""
    assert part.answer is not None
    return part.answer.dicts()


def test_lag_is_from_the_measurement_to_the_warehouse(database_url: str) -> None:
    """By machine; what came before the time that is asked for does not count."""
    with Store.open(database_url) as store:
        store.write(
            [samples.measurement(1, host="a"), samples.measurement(2, host="b"), samples.measurement(3, host="b")]
        )
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE measurements SET measured_at = '2026-11-01 10:00:00.000000'")
            for number, at in ((1, "2026-11-01 10:00:30"), (2, "2026-11-08 10:00:10"), (3, "2026-11-08 10:30:20")):
                connection.exec_driver_sql(
                    "UPDATE measurements SET ingested_at = ? WHERE id = ?", (f"{at}.000000", number)
                )
    week_s = timedelta(days=7).total_seconds()
    with Feed(database_url) as feed:
        day, year = parts(feed), parts(feed, span="year")
        only_a = parts(feed, span="year", machine="a")
    lags = [(row["machine"], row["measurements"], row["lag_s"], row["longest_lag_s"]) for row in rows(year["lag"])]
    assert lags == [("b", 2, week_s + 915, week_s + 1820), ("a", 1, 30, 30)]
    assert [row["machine"] for row in rows(day["lag"])] == ["b"]
    assert [row["machine"] for row in rows(only_a["lag"])] == ["a"]
    bars = [(str(row["began_at"]), row["measurements"]) for row in rows(day["arrivals"])]
    assert bars == [("2026-11-08 10:00:00", 1), ("2026-11-08 10:30:00", 1)]
    assert day["arrivals"].spec["data"]["values"][0]["ended_at"] == "2026-11-08T10:15:00Z"
    axis = [day["arrivals"].spec["encoding"]["x"]["scale"][name]["expr"] for name in ("domainMin", "domainMax")]
    assert axis == ["toDate('2026-11-07T10:45:00Z')", "toDate('2026-11-08T10:45:00Z')"]


def test_what_waits_and_what_was_refused(database_url: str, tmp_path: Path) -> None:
    """Segments, quarantine and its reasons of each spool; a file that is no spool is said, and hides no other."""
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "bad.seg").write_bytes(b"nothing that is a segment")
    with Store.open(database_url) as store:
        ingest_once(spool, store)
    with SpoolWriter(spool) as writer:
        writer.append(samples.measurement(1))
    no_spool = tmp_path / "file"
    no_spool.write_text("")
    with Feed(database_url) as feed:
        found = parts(feed, (spool, no_spool))
    (waiting,) = rows(found["spools"])
    assert (waiting["spool"], waiting["daemon"], waiting["waiting"]) == (str(spool), "not running", 1)
    assert rows(found["rejects"]) == [{"spool": str(spool), "reason": "bad_header", "files": 1}]
    (kept,) = rows(found["quarantine"])
    assert (kept["name"], kept["spool"]) == ("bad.seg", str(spool))
    alarms = [each.part.text for each in found.values() if getattr(each.part, "is_alarm", False)]
    assert len(alarms) == 1
    assert str(no_spool) in alarms[0]


def test_without_any_spool(database_url: str) -> None:
    """The page says so, and shows the warehouse's part."""
    with Feed(database_url) as feed:
        found = parts(feed)
    assert (rows(found["spools"]), rows(found["rejects"]), rows(found["arrivals"])) == ([], [], [])
    assert "quarantine" not in found
