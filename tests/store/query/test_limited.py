"""Limits of a query, whatever DuckDB does about them."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import diode_store
from diode_store.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Iterator

DEAF = (
    "SELECT range(3000000000)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
)
"""Queries that DuckDB neither interrupts nor keeps within its memory limit."""
ENDLESS = "SELECT count(*) FROM range(10000000) AS a, range(10000000) AS b WHERE (a.range * b.range) % 7 = 3"
PLENTY = "64GB"


@pytest.fixture
def interrupted() -> Iterator[threading.Timer]:
    """Press Ctrl-C in a second."""
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    yield timer
    timer.cancel()


@pytest.mark.quick(1)
@pytest.mark.parametrize("sql", [*DEAF, ENDLESS])
def test_a_time_limit_ends_every_query(database_url: str, sql: str) -> None:
    """It ends within two seconds of its limit, and the next query has an answer."""
    with diode_store.open(database_url, time_limit_s=1, memory_limit=PLENTY) as warehouse:
        session = warehouse._session
        began = time.monotonic()
        with pytest.raises(QueryError, match=r"^the query took more than 1 s \(--time-limit"):
            list(session.ask("rows", sql, None))
        assert 1 <= time.monotonic() - began < 3
        assert session._workers == []
    with diode_store.open(database_url) as warehouse:
        assert warehouse.query("SELECT 1").rows() == [(1,)]


@pytest.mark.quick(1)
@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("sql", [*DEAF, ENDLESS])
def test_ctrl_c_ends_every_query(database_url: str, sql: str) -> None:
    """It ends within two seconds, and the same warehouse answers the next query."""
    with diode_store.open(database_url, memory_limit=PLENTY) as warehouse:
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            list(warehouse._session.ask("rows", sql, None))
        assert time.monotonic() - began < 3
        assert warehouse.query("SELECT 1").rows() == [(1,)]


TOO_MUCH = (
    r"^the query needs more memory than its limit of 512MiB \(--memory"
    "|^the process that runs the query (was killed|died|ended).*; .* than 512MiB"  # DuckDB may abort
    "|The maximum total string size"  # Arrow may refuse a column first
)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        *((sql, False) for sql in DEAF),
        ("SELECT repeat('x', 100000) FROM range(100000)", True),
        ("SELECT list(range) FROM range(90000000)", False),
    ],
)
def test_no_query_takes_more_memory_than_its_limit(database_url: str, sql: str, whole: bool) -> None:  # noqa: FBT001
    """An error ends it, its process stayed below the limit and ended too, and the next query is answered."""
    with diode_store.open(database_url, memory_limit="512MiB") as warehouse:
        session = warehouse._session
        for read in ("table", "rows") if whole else ("rows",):
            warehouse.query("SELECT 1").rows()
            (worker,) = session._workers
            with _peak_of(worker._child.pid) as peak, pytest.raises(QueryError, match=TOO_MUCH):
                list(session.ask(read, sql, (), whole=whole))
            assert 50 << 20 < peak.bytes < 512 << 20
            assert session._workers == []
        assert warehouse.query("SELECT 1").rows() == [(1,)]


class _Peak(threading.Thread):
    """The most memory that a process held, read until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status, self.bytes = Path(f"/proc/{pid}/status"), 0

    def run(self) -> None:
        with suppress(OSError):
            while (line := re.search(r"VmHWM:\s+(\d+)", self._status.read_text())) is not None:
                self.bytes = int(line[1]) << 10
                time.sleep(0.005)


@contextmanager
def _peak_of(pid: int) -> Iterator[_Peak]:
    peak = _Peak(pid)
    peak.start()
    yield peak
    peak.join(30)
    assert not peak.is_alive(), "the process goes on"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("limit", "said"),
    [
        *((limit, "is no size") for limit in ("much", "-5GB", "-1", "none", "1e999GB", "")),
        *((limit, "give 256MB or more$") for limit in ("100MB", "1KB", "0%")),
    ],
)
def test_a_strange_limit(database_url: str, limit: str, said: str) -> None:
    """What is no size, would be no limit, or leaves no memory for the query is said."""
    with diode_store.open(database_url, memory_limit=limit) as warehouse, pytest.raises(QueryError, match=said):
        warehouse.query("SELECT 1")


def test_the_least_limit(database_url: str) -> None:
    """A query works with it."""
    with diode_store.open(database_url, memory_limit="256MB") as warehouse:
        assert warehouse.query("SELECT count(*) FROM best_times").rows() == [(0,)]


def test_an_answer_that_is_left_ends_its_query(database_url: str) -> None:
    """Who reads only the first rows does not leave a process at work, and no folder for what did not fit."""
    with diode_store.open(database_url) as warehouse:
        session = warehouse._session
        rows = session.rows("SELECT range FROM range(1000000000)")[1]
        assert next(rows) == (0,)
        (worker,) = session._workers
        del rows
        assert (session._workers, worker._child.exit_status) == ([], -signal.SIGKILL)
        assert not worker._folder.exists()


def test_an_answer_of_a_warehouse_that_was_closed(database_url: str) -> None:
    """Who reads on is told that, and not that memory is lacking."""
    with diode_store.open(database_url) as warehouse:
        rows = warehouse._session.rows("SELECT range FROM range(1000000000)")[1]
        next(rows)
        warehouse.close()
        with pytest.raises(QueryError, match=r"^this warehouse is closed"):
            list(rows)


def test_a_process_that_ended_while_it_waited(database_url: str) -> None:
    """The next query gets another one."""
    with diode_store.open(database_url) as warehouse:
        warehouse.query("SELECT 1")
        (worker,) = warehouse._session._workers
        worker._child.kill()
        while worker._child.exit_status is None:
            time.sleep(0.01)
        assert warehouse.query("SELECT 2").rows() == [(2,)]
        assert worker not in warehouse._session._workers
