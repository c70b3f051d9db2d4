"""What pages are made of: answers from a cache that is kept up to date, and their queries."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

import diode_explorer.feed as feed_module
import samples
from diode_explorer import site
from diode_explorer.feed import Feed, SlowQueryError
from diode_explorer.pages import cases
from diode_explorer.pages.overview import OVERVIEW
from diode_explorer.visit import Visit
from diode_store.cache.sync import sync
from diode_store.warehouse.store import Store
from diode_trainer.report.questions import Question

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from diode_store.cache.cache import Cache
    from diode_trainer.report.parts import Part


def _count(feed: Feed) -> int:
    ((count,),) = feed.state.ask(Question("SELECT count(*) FROM measurements")).rows
    return int(count)


def test_a_warehouse_that_goes_away(database_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Is said once; what was there is shown until it is back, and then what is new."""
    with Feed(str(database_path), every_s=0.05) as feed:
        aside = database_path.rename(tmp_path / "aside")
        ends = time.monotonic() + 20
        while "the cache cannot be updated" not in caplog.text:
            assert time.monotonic() < ends
            time.sleep(0.05)
        time.sleep(0.5)
        assert caplog.text.count("the cache cannot be updated") == 1
        assert _count(feed) == 0
        aside.rename(database_path)
        with Store.open(str(database_path)) as store:
            store.write([samples.measurement(1)])
        while _count(feed) == 0:
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_what_is_stale(database_url: str) -> None:
    """By when it was measured, not by which environment came first; neither superseded ones nor replays count."""
    new, old = replace(samples.ENVIRONMENT, torch="2.12.0"), samples.ENVIRONMENT
    before = samples.MEASURED_AT - timedelta(days=10)
    with Store.open(database_url) as store:
        store.write([samples.measurement(1, environment=new, host="a")])
        store.write([samples.measurement(number, environment=old, measured_at=before, host="b") for number in (2, 3)])
        later = samples.MEASURED_AT + timedelta(days=1)
        replayed = {"environment": replace(old, torch="2.13.0"), "measured_at": later, "is_replay": True}
        store.write([samples.measurement(4, **replayed)])
        store.write([samples.measurement(5, environment=new, superseded_by=(1).to_bytes(16, "big"))])
    with Feed(database_url) as feed:
        found = {}
        for machine in (None, "a", "b"):
            visit = Visit(feed.state, {} if machine is None else {"machine": machine})
            tables = {part.name: visit.ask(part.source) for part in OVERVIEW.parts(visit)}
            found[machine] = [row[:4] for row in tables["stale"].rows]
            if machine is None:
                ((_, _, _, problems, measurements, timings, *_),) = tables["devices"].rows
        assert found == {None: [("NVIDIA H200", "mm", "bfloat16", 2)], "a": [], "b": found[None]}
    assert (problems, measurements, timings) == (4, 4, 12)


def test_what_is_stale_is_of_its_last_machine(database_url: str) -> None:
    """Though nobody said which that is, and an earlier one is known."""
    old = replace(samples.ENVIRONMENT, torch="2.9.0")
    days = [samples.MEASURED_AT - timedelta(days=before) for before in (2, 1, 0)]
    problem = samples.matmul(64, 128, 256)
    with Store.open(database_url) as store:
        store.write([samples.measurement(1, problem=problem, environment=old, measured_at=days[0], host="a")])
        store.write([samples.measurement(2, problem=problem, environment=old, measured_at=days[1])])
        store.write([samples.measurement(3, measured_at=days[2])])
    with Feed(database_url) as feed:
        found = {}
        for machine in ("a", cases.UNKNOWN):
            visit = Visit(feed.state, {"machine": machine})
            (table,) = (part for part in OVERVIEW.parts(visit) if part.name == "stale")
            found[machine] = [row[3] for row in visit.ask(table.source).rows]
    assert found == {"a": [], cases.UNKNOWN: [1]}


def test_a_sync_of_another_process_is_not_missed(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it comes just after this one has opened the cache."""
    opened = feed_module.open_cache

    def open_and_grow(cache: Cache, **options: Any) -> Any:
        connection = opened(cache, **options)
        monkeypatch.setattr(feed_module, "open_cache", opened)
        with Store.open(database_url) as store:
            store.write([samples.measurement(1)])
        sync(database_url, cache)
        return connection

    monkeypatch.setattr(feed_module, "open_cache", open_and_grow)
    with Feed(database_url, every_s=0.05) as feed:
        ends = time.monotonic() + 20
        while _count(feed) == 0:
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_a_cache_elsewhere(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is where every command has it."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "elsewhere"))
    with Feed(database_url) as feed:
        assert feed.state.ask(Question("SELECT 1 AS one")).rows == ((1,),)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_slow_query_is_stopped(database_url: str) -> None:
    """And the next one is answered."""
    sql = "SELECT count(*) FROM range(100000000) AS a, range(100000) AS b WHERE a.range % 7 = b.range"
    with Feed(database_url, limit_s=0.2) as feed:
        with pytest.raises(SlowQueryError, match=r"the query was stopped after 0.2 s; narrow it"):
            feed.state.ask(Question(sql))
        assert feed.state.ask(Question("SELECT 1 AS one")).rows == ((1,),)


def test_no_more_rows_than_asked_for(database_url: str) -> None:
    """The rest is said to be there."""
    with Feed(database_url) as feed:
        cut, whole = (feed.state.ask(Question("SELECT * FROM range(5)"), rows) for rows in (3, 5))
    assert (len(cut.rows), cut.is_cut) == (3, True)
    assert (len(whole.rows), whole.is_cut) == (5, False)


@pytest.mark.parametrize("value", ["plain", "it's", "'; DROP TABLE x; --", "a\\' OR 1=1", "$other", "''"])
def test_what_is_copied_asks_for_the_same(value: str) -> None:
    """A query with its values filled in gives what it gives with parameters."""
    question = Question("SELECT $name AS name", {"name": value, "more": "unused"})
    with duckdb.connect() as connection:
        bound = connection.execute(question.sql, question.bound).fetchall()
        assert connection.execute(question.text).fetchall() == bound == [(value,)]


def test_a_page_that_fails_keeps_no_other_from_being_shown(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with it stands in the log."""

    def fail(_asked: object) -> Iterable[Part]:
        raise ValueError("a fault of ours")

    broken = {each.name: replace(each, parts=fail) if each.name == "change" else each for each in site.PAGES.values()}
    monkeypatch.setattr(site, "PAGES", broken)
    with Feed(database_url) as feed:
        site.make_site(feed)
    assert [record.getMessage() for record in caplog.records] == ["/change: a fault of ours"]
    assert "Traceback" in caplog.text


def test_a_dollar_in_quotes_is_no_parameter() -> None:
    """Names of models stand there."""
    question = Question("SELECT 'a$b' || $name AS name", {"name": "it's $c"})
    assert question.bound == {"name": "it's $c"}
    assert question.text == "SELECT 'a$b' || 'it''s $c' AS name"
