"""Times of fused kernels on their way: spool, warehouse, SQL, the table of fastest kernels, and a picks file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_fused import tune, tuner_of

from diode_collectors.inductor.fused_source import config_of_triton
from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.matmul import collect_to_spool
from diode_store.command_line.render import problem_text
from diode_store.exchange.picks_reading import read_picks
from diode_store.warehouse.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand


def test_from_the_run_to_a_picks_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str, diode: RunCommand
) -> None:
    """Spool, warehouse, SQL, the table of fastest kernels, and a picks file that names the fastest."""
    spool, picks = tmp_path / "spool", tmp_path / "picks.json"
    with tuner_of("pointwise", monkeypatch) as tuner, collect_to_spool(spool):
        tune(tuner)
        fastest = config_of_triton("pointwise", tuner.launchers[0].config)
    with Store.open(database_url) as store:
        assert ingest_once(spool, store).measurements == 2
    sql = "SELECT op, template, kwargs, runtime_us FROM fastest_configs"
    [row] = json.loads(diode("query", sql, "--json", "--database", database_url).out)
    assert (row["op"], row["template"], json.loads(row["kwargs"])) == (
        "pointwise",
        "triton::pointwise",
        [list(pair) for pair in fastest.kwargs],
    )
    assert row["runtime_us"] == pytest.approx(10.0, rel=1e-3)
    table = diode("fastest", "--op", "pointwise", "--database", database_url).out
    assert fastest.describe().removeprefix("triton::") in table
    diode("lock", "-o", str(picks), "--database", database_url)
    [pick] = read_picks(picks).picks.values()
    assert pick.configs[0] == fastest
    assert pick.name == problem_text(pick.problem)
