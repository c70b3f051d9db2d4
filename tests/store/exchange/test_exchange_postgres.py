"""What goes out of a warehouse on PostgreSQL comes back there, in every format that holds everything."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from round_trip import EVERYTHING, everything
from stored import content

from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeMeasurement, RunCommand


@pytest.mark.parametrize("name", ["out.seg", "out.jsonl.gz", "out.parquet", "out.json"])
def test_round_trip(
    diode: RunCommand,
    postgres_url: str,
    database_url: str,
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Nothing is new there, and in a warehouse on SQLite it is the same."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))
    kept = [replace(m, superseded_by=None) for m in everything(make_measurement)]
    with Store.open(postgres_url) as store:
        store.write(kept)
    options = ("--format", "t4") if name == "out.json" else ()
    out = str(tmp_path / name)
    monkeypatch.setenv("DIODE_DATABASE_URL", postgres_url)
    assert diode("export", "-o", out, *options).out == f"{out}: {EVERYTHING}\n"
    assert diode("import", out).out == "nothing new: all 3 measurements were there already\n"
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    assert diode("import", out).out == f"{EVERYTHING} added\n"
    assert content(database_url) == content(postgres_url)


def test_a_lookup_table(
    diode: RunCommand,
    postgres_url: str,
    tmp_path: Path,
    make_measurement: MakeMeasurement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Is made of PostgreSQL's measurements too."""
    monkeypatch.setenv("DIODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DIODE_DATABASE_URL", postgres_url)
    with Store.open(postgres_url) as store:
        store.write([make_measurement(1), make_measurement(2)])
    out = str(tmp_path / "table.json")
    assert diode("export", "--format", "inductor-lut", "-o", out).out == f"{out}: 2 problems with 2 entries\n"
