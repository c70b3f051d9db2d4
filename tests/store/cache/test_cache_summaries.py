"""The summaries that syncs keep up to date equal the views' original definitions, whatever happened before."""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from view_warehouse import CPP, TMA, VENDOR, WHOLE, A, B, C, estimate

from diode_store.cache import change, filling
from diode_store.cache.cache import Cache
from diode_store.cache.sync import sync
from diode_store.errors import CacheError
from diode_store.query import analytics
from diode_store.records import Outcome, Timing
from diode_store.views import view_files
from diode_store.warehouse.store import Store
from lanes import sizes
from samples import measurement

if TYPE_CHECKING:
    import duckdb

    from diode_store.records import Measurement

ORIGINAL = Path(__file__).with_name("original")
"""The definitions of the views as they were when each query worked everything out."""
TODAY = Path(view_files.__file__).with_name("sql")
VIEWS = ("fastest_configs", "fastest_by_template", "vendor_gap", "best_times", "rooflines", "coverage")
_CONFIGS = (VENDOR, A, B, C, TMA, CPP, WHOLE)
_REGIMES = (None, "write_flush", "read_flush")
_INCLUDE = re.compile(r"^ *-- include (\w+\.sql)\n", re.MULTILINE)


def original(name: str) -> str:
    """Return the text of an original definition with its includes; parts that are the same today are today's."""
    own = ORIGINAL / f"{name}.sql"
    text = (own if own.exists() else TODAY / own.name).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: original(found[1].removesuffix(".sql")), text)


def by_the_original_views(connection: duckdb.DuckDBPyConnection) -> dict[str, list[Any]]:
    """Return the rows of the views over the same tables, worked out by their original definitions."""
    with closing(connection.cursor()) as plain:
        plain.execute("CREATE SCHEMA original")
        plain.execute(
            "CREATE VIEW original.segment_measurements AS SELECT * "
            "EXCLUDE (case_no, timing_count, failure_count, estimate_count) FROM main.stored_measurements"
        )
        plain.execute("CREATE VIEW original.timings AS SELECT * EXCLUDE (case_no) FROM main.stored_timings")
        plain.execute("SET schema = 'original'")
        for name in ("base", *VIEWS):
            # The types and the first macros are the same, and there already.
            for statement in original(name).split(";\n"):
                if not re.search("CREATE (TYPE|MACRO (is_by|asks))", statement) and "CREATE" in statement:
                    plain.execute(statement)
        return {view: plain.execute(f"SELECT * FROM original.{view} ORDER BY ALL").fetchall() for view in VIEWS}  # noqa: S608 - our own names


def check(cache: Cache) -> None:
    """Assert that the views of a cache show what their original definitions show."""
    with closing(analytics.open_cache(cache)) as connection:
        kept = {view: connection.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall() for view in VIEWS}  # noqa: S608 - our own names
    with closing(_unlocked(cache)) as connection:
        expected = by_the_original_views(connection)
    for view in VIEWS:
        assert rounded(kept[view]) == rounded(expected[view]), view


def rounded(value: Any) -> Any:
    """Return rows without the last digits of their figures, which depend on the order of a sum."""
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def _unlocked(cache: Cache) -> duckdb.DuckDBPyConnection:
    """Return a connection in which a test may make views."""
    import duckdb

    from diode_store.cache.tables import attach, sources
    from diode_store.cache.world import make_hardware

    reading, release = cache.hold()
    connection = duckdb.connect()
    attach(connection, reading.paths)
    for name, select in sources(reading, reading.paths).items():
        if name == "hardware":
            make_hardware(connection, select)
        else:
            connection.execute(f"CREATE VIEW {name} AS {select}")
    for statements in view_files.base_statements():
        connection.execute(statements)
    release()
    return connection


class History:
    """Random changes of a warehouse."""

    def __init__(self, database: Path, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self._database = database
        self._store = Store.open(str(database))
        self._number = 0

    def close(self) -> None:
        """Close the warehouse."""
        self._store.close()

    def step(self) -> None:
        """Change something: mostly new measurements, else marks, deletions or a device's figures."""
        kind = self.chance.choice(("new", "new", "new", "delete", "mark", "unmark", "late", "figures"))
        if kind in {"new", "figures"}:
            self._store.write([self._measurement(kind == "figures") for _ in range(self.chance.randint(1, 5))])
            return
        with closing(sqlite3.connect(self._database)) as raw, raw:
            ids = [number for (number,) in raw.execute("SELECT id FROM measurements")]
            for number in self.chance.sample(ids, min(len(ids), self.chance.randint(1, 3))):
                self._change(raw, kind, number)

    def _change(self, raw: sqlite3.Connection, kind: str, number: int) -> None:
        if kind == "delete":
            raw.execute("DELETE FROM timings WHERE measurement_id = ?", (number,))
            raw.execute("DELETE FROM measurements WHERE id = ?", (number,))
        elif kind == "mark":
            column, value = self.chance.choice((("flags", "hot"), ("superseded_by", bytes(16))))
            raw.execute(f"UPDATE measurements SET {column} = ? WHERE id = ?", (value, number))  # noqa: S608 - our own names
        elif kind == "unmark":
            raw.execute("UPDATE measurements SET flags = NULL, superseded_by = NULL WHERE id = ?", (number,))
        else:  # a restored backup uses ids again
            raw.execute("UPDATE measurements SET uid = ? WHERE id = ?", (self.chance.randbytes(16), number))

    def _measurement(self, has_figures: bool) -> Measurement:  # noqa: FBT001 - one caller
        self._number += 1
        like = measurement(self.chance.randrange(4))
        bandwidth = self.chance.choice((None, 10**12)) if has_figures else None
        hardware = replace(
            like.hardware, name=self.chance.choice(("NVIDIA H200", "Other")), memory_bandwidth_bytes_per_s=bandwidth
        )
        return replace(
            like,
            uid=self._number.to_bytes(16, "big"),
            hardware=hardware,
            environment=replace(like.environment, torch=self.chance.choice(("2.11.0", "2.12.0"))),
            timings=tuple(self._timing(config) for config in self.chance.sample(_CONFIGS, self.chance.randint(1, 7))),
            timing_method=replace(like.timing_method, regime=self.chance.choice(_REGIMES)),
            is_replay=self.chance.random() < 0.1,
            choice_policy=self.chance.choice(("stock", "stock", "hook:a")),
            family=self.chance.choice((None, "one", "two")),
        )

    def _timing(self, config: Any) -> Timing:
        us = self.chance.choice((10.0, 10.1, 10.5, 12.0, 20.0, 0.001))
        if self.chance.random() < 0.1:
            return Timing(config, None, outcome=Outcome.COMPILE_ERROR)
        return estimate(config, us) if self.chance.random() < 0.1 else Timing(config, us, repeats=3)


@pytest.mark.parametrize("histories", sizes(1, 100))
def test_summaries_after_any_history(
    database_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, histories: int
) -> None:
    """Late, repeated, deleted, flagged and superseded measurements; small bases; definitions of another version."""
    for seed in range(histories):
        database = tmp_path / f"{seed}.db"
        shutil.copy(database_path, database)
        history, cache = History(database, seed), Cache(tmp_path / f"{seed}.cache")
        for name, module, value in (
            ("MOST_RECENT", change, history.chance.choice((15, 40, 1_000))),
            ("TIMINGS_AT_ONCE", filling, 11),
            ("_SUMMARIZED_AT_ONCE", filling, 23),
        ):
            monkeypatch.setattr(module, name, value)
        with closing(history):
            for _ in range(3):
                for _ in range(history.chance.randint(1, 4)):
                    history.step()
                sync(str(database), cache)
                check(cache)
            monkeypatch.undo()
            state = cache.state()
            assert state is not None
            cache.publish(replace(state, definitions="of another version"))
            with pytest.raises(CacheError, match="was made by another version of torch-diode; run `diode sync`"):
                analytics.open_cache(cache)
            assert sync(str(database), cache).rebuilt is None
            check(cache)
