"""From a real compile to rows of the warehouse: what Inductor said is what SQL finds."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
import torch
from run_ingest import ingest
from spool_reading import spooled
from torch._inductor.select_algorithm import TritonTemplateCaller, add_feedback_saver, get_algorithm_selector_cache

from diode_collectors.feedback.collector import FeedbackCollector
from inductor_harness import block_time_ms, compile_and_run, triton_choices_on_cpu

if TYPE_CHECKING:
    from pathlib import Path

    from swept import Swept

ROWS = """
SELECT p.op, p.b, p.m, p.n, p.k, p.layout, p.dtype, p.inputs, c.template, c.block_m, c.block_n, c.block_k,
       c.num_stages, c.num_warps, t.runtime_us, t.outcome, m.source, m.search_space
FROM timings t JOIN measurements m ON m.id = t.measurement_id JOIN problems p ON p.id = m.problem_id
     JOIN configs c ON c.id = t.config_id
"""


def rows_of(database: Path) -> list[dict[str, Any]]:
    """Return every timing of a warehouse with its problem and config, by SQLite alone."""
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    try:
        return [dict(row) for row in connection.execute(ROWS)]
    finally:
        connection.close()


def said_of(choice: Any) -> tuple[Any, ...]:
    """Return template, tile (M, N, K), stages and warps as a choice itself prints them."""
    if not isinstance(choice, TritonTemplateCaller):
        return (f"aten::{choice.name}", None, None, None, None, None)
    info = choice.info_dict()
    m, k, n = (int(part) for part in info["tile_shape"].strip("()").split(","))
    return (f"triton::{choice.name.split('_')[1]}", m, n, k, info["num_stages"], info["num_warps"])


def some_fail_ms(choice: Any) -> float:
    """Time a choice by its tile; those 32 high do not run."""
    return math.inf if said_of(choice)[1] == 32 else block_time_ms(choice)


def test_triton_choices_of_a_compile(tmp_path: Path, database_path: Path) -> None:
    """Each choice that Inductor timed is a row: its own tile, its milliseconds as microseconds, its failure."""
    told: list[tuple[str, list[Any], dict[Any, float]]] = []

    def overhear(timings: Any, name: str, nodes: Any, *_: Any) -> None:
        inputs = [
            [str(n.get_dtype()).removeprefix("torch."), list(map(int, n.get_size())), list(map(int, n.get_stride()))]
            for n in nodes
        ]
        told.append((name, inputs, {said_of(choice): ms for choice, ms in timings.items()}))

    cache = get_algorithm_selector_cache()
    before = list(cache.feedback_saver_fns)  # which adding to changes
    add_feedback_saver(overhear)
    weight, bias = torch.zeros(48, 128, dtype=torch.bfloat16), torch.zeros(48, dtype=torch.bfloat16)
    activation = torch.zeros(256, 128, dtype=torch.bfloat16)
    try:
        with triton_choices_on_cpu(time_ms=some_fail_ms), FeedbackCollector(tmp_path / "spool"):
            compile_and_run(torch.mm, torch.zeros(160, 256), torch.zeros(256, 192))
            compile_and_run(lambda a: torch.nn.functional.linear(a, weight, bias), activation)
            compile_and_run(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    finally:
        cache.feedback_saver_fns = before
    assert ingest("--once", "--spool", tmp_path / "spool", "--database", database_path).code == 0
    rows = rows_of(database_path)
    shapes = {(r["op"], r["b"], r["m"], r["n"], r["k"], r["layout"], r["dtype"]) for r in rows}
    assert shapes == {
        ("mm", 1, 160, 192, 256, "nn", "float32"),
        ("addmm", 1, 256, 48, 128, "nt", "bfloat16"),
        ("bmm", 4, 64, 48, 32, "nn", "float32"),
    }
    for name, inputs, timings in told:
        mine = [row for row in rows if row["op"] == name]
        assert all(json.loads(row["inputs"]) == inputs for row in mine)
        columns = ("template", "block_m", "block_n", "block_k", "num_stages", "num_warps")
        stored = {tuple(row[column] for column in columns): (row["runtime_us"], row["outcome"]) for row in mine}
        assert len(stored) == len(mine) == len(timings) > 5
        for choice, milliseconds in timings.items():
            runtime_us, outcome = stored[choice]
            if math.isinf(milliseconds):
                assert (runtime_us, outcome) == (None, "failed_unspecified")
            else:
                assert (runtime_us, outcome) == (pytest.approx(1000 * milliseconds), "ok")
    assert {(row["source"], row["search_space"]) for row in rows} == {("feedback", "DEFAULT")}
    assert {row["outcome"] for row in rows} == {"ok", "failed_unspecified"}


@pytest.mark.long
@pytest.mark.xdist_group("sweeps")
def test_kernels_of_a_sweep_on_this_cpu(swept: Swept, tmp_path: Path, database_path: Path) -> None:
    """ATen and C++ kernels of mm, addmm and bmm, timed by the command, are the rows that the spool held."""
    spool = shutil.copytree(swept.spool, tmp_path / "spool")
    expected = {
        (m.problem.op, t.config.template): (t.runtime_us, t.outcome.value) for m in spooled(spool) for t in m.timings
    }
    assert ingest("--once", "--spool", spool, "--database", database_path).code == 0
    rows = rows_of(database_path)
    assert {(r["op"], r["template"]): (r["runtime_us"], r["outcome"]) for r in rows} == expected
    assert {(r["op"], r["layout"], r["m"], r["n"], r["k"], r["b"]) for r in rows} == {
        ("mm", "nn", 32, 64, 96, 1),
        ("addmm", "nt", 32, 64, 96, 1),
        ("bmm", "nt", 16, 48, 32, 3),
    }
    assert {r["template"].partition("::")[0] for r in rows} == {"aten", "cpp"}
    assert all(r["outcome"] == "ok" and 0.1 < r["runtime_us"] < 1e5 for r in rows)
    assert {r["source"] for r in rows} == {"sweep"}
