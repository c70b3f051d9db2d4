from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compare import assert_exactly_once
from processes import PROGRAM
from producing import produce, produced

from diode_collectors.spool.spool import SpoolWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "diode_store",
    "collectors/diode_collectors",
    "trainer/diode_trainer",
    "integration",
    "tuning/diode_tuning",
    "explorer/diode_explorer",
    "migrations",
)
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

MAY_RUN_CODE = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing"}
"""Modules that read bytes which can make Python do anything."""
MAY_IMPORT = {
    "diode_store/processes/child.py": "between a process and its own child, by a socket of these two",
    "diode_store/processes/parent.py": "likewise",
    "trainer/diode_trainer/artifact.py": "to name the error by which torch.load(weights_only=True) refuses a file",
}

MAY_NEST = {
    "diode_store/query/guard.py": "DuckDB's, which refuses deep statements itself",
    "diode_store/query/plan.py": "DuckDB's",
    "diode_store/query/ranked_ties.py": "of the cache, checked when it was stored",
    "diode_store/exchange/foreign/max_autotune_solution.py": "our own text",
    "tuning/diode_tuning/running.py": "from a process of our own",
    "diode_store/ops/problem.py": "of the warehouse, made of a problem's own dimensions",
    "diode_store/candidates/columns.py": "of the warehouse, made of a config's own arguments",
}
"""Files that parse text without a limit on its depth, and where it is from."""

OWN_NAMES = {
    "diode_store/cache/adbc.py": "a number of our own",
    "diode_store/query/analytics.py": "names of our own views and files; files are quoted",
    "diode_store/warehouse/bulk.py": "columns of our own tables, and placeholders",
    "diode_store/warehouse/dimensions.py": "our own tables and columns, and placeholders",
    "diode_store/warehouse/facts.py": "columns of our own tables, and placeholders",
    "diode_store/cache/bench.py": "our own tables; a path is quoted",
    "diode_store/cache/change.py": "our own tables",
    "diode_store/cache/facts.py": "our own tables and columns, and integers",
    "diode_store/cache/filling.py": "our own tables and columns, and integers",
    "diode_store/cache/postgres.py": "our own tables and columns, and integers",
    "diode_store/cache/published.py": "our own tables and columns; values and paths are quoted",
    "diode_store/cache/source.py": "our own tables and columns",
    "diode_store/cache/sqlite.py": "our own tables and columns, and integers",
    "diode_store/cache/small.py": "our own tables and columns, and integers",
    "diode_store/cache/tables.py": "our own tables and columns; a path of /proc",
    "diode_store/cache/tips.py": "our own tables and columns, and integers",
    "diode_store/cache/world.py": "our own tables and columns",
    "diode_store/delta/metric_column.py": "our own columns and types",
    "diode_store/query/measured.py": "columns of our own tables",
    "diode_store/query/named_devices.py": "columns of our own tables",
    "diode_store/query/publish.py": "our own tables; values are quoted or bound",
    "diode_store/views/noise_sql.py": "our own figures",
    "migrations/versions/0002_any_op.py": "our own tables and the names of ops",
    "diode_store/views/problem_sql.py": "names and figures of our own ops",
    "diode_store/views/regime_sql.py": "names of our own regimes",
    "diode_store/views/roofline_sql.py": "our own figures",
    "diode_store/query/ranked_ties.py": "columns of our own tables",
    "diode_store/warehouse/upkeep.py": "our own tables",
    "diode_store/commands/exporters.py": "our own conditions; what the user typed are parameters",
    "diode_store/commands/warehouse_checks.py": "our own tables",
    "diode_store/commands/fastest.py": "our own conditions; what the user typed are parameters",
    "explorer/diode_explorer/feed.py": "a limit of our own around our own query",
    "explorer/diode_explorer/judging/models.py": "names of models as literals, quoted",
    "explorer/diode_explorer/ordering.py": "a column of our own around our own query",
    "explorer/diode_explorer/pages/cases.py": "our own columns",
    "explorer/diode_explorer/pages/sql.py": "a SELECT of the visitor, which runs within limits and reads only",
    "explorer/diode_explorer/pages/gains.py": "our own conditions; what an address says are parameters",
    "explorer/diode_explorer/pages/change/pairs.py": "our own conditions; what an address says are parameters",
    "explorer/diode_explorer/pages/coverage/cells.py": "our own columns and conditions, and figures of devices",
    "explorer/diode_explorer/pages/decisions/page.py": "our own conditions; what an address says are parameters",
    "explorer/diode_explorer/pages/decisions/questions.py": "likewise",
    "explorer/diode_explorer/pages/model/page.py": "likewise",
    "explorer/diode_explorer/pages/overview.py": "likewise",
    "explorer/diode_explorer/pages/problem/page.py": "likewise, and Inductor's own list of configs",
    "trainer/diode_trainer/data/from_warehouse.py": "our own columns and conditions; what is typed are parameters",
    "trainer/diode_trainer/data/measured.py": "our own names",
    "trainer/diode_trainer/data/streaming.py": "our own columns",
}
"""Files that put SQL together, and of what; values are bound in each of them."""
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|TRUNCATE|COPY|ATTACH|PRAGMA|VACUUM|WITH|MERGE)\s")


def name_of(path: Path) -> str:
    """Return a file's name as the lists above have it."""
    return path.relative_to(ROOT).as_posix()


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the first part of every module that is imported, anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def called(node: ast.AST) -> str:
    """Return ``name`` or ``module.name`` of what is called; nothing for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func)


def is_put_together(node: ast.AST) -> bool:
    """Tell whether an expression makes SQL of parts."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values) and starts_like_sql(node.values[0])
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        return starts_like_sql(node.left)
    return called(node).endswith(".format") and starts_like_sql(node.func.value)  # type: ignore[attr-defined]


def starts_like_sql(node: ast.AST) -> bool:
    """Tell whether a literal begins like a statement."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value) is not None


def reads_what_can_run_code(path: Path) -> list[str]:
    """Return a line for each place where a file does."""
    tree = ast.parse(path.read_text())
    modules = MAY_RUN_CODE & set(imports_of(tree)) if name_of(path) not in MAY_IMPORT else set()
    found = [f"{name_of(path)} imports {', '.join(sorted(modules))}"] if modules else []
    may_load = name_of(path) in MAY_IMPORT
    for node in ast.walk(tree):
        keywords = {word.arg: ast.unparse(word.value) for word in getattr(node, "keywords", ()) if word.arg}
        unsafe = (
            called(node) in {"eval", "exec"}
            or (called(node).endswith(("pickle.load", "pickle.loads", ".Unpickler")) and not may_load)
            or keywords.get("allow_pickle", "False") != "False"
            or (called(node) == "torch.load" and keywords.get("weights_only") != "True")
        )
        found += [f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}"] if unsafe else []  # type: ignore[attr-defined]
    return found


def test_nothing_is_read_that_can_run_code() -> None:
    """No pickle and nothing like it in any package, no `eval`; models are loaded as weights only."""
    assert [line for path in FILES for line in reads_what_can_run_code(path)] == []
    imports = {name_of(path) for path in FILES if MAY_RUN_CODE & set(imports_of(ast.parse(path.read_text())))}
    assert imports == MAY_IMPORT.keys(), "a file that no longer needs its exception has none"


def test_sql_is_put_together_of_our_own_names_alone() -> None:
    """Beside ruff's S608, which needs a reason wherever it is silenced: only listed files make SQL of parts."""
    together = set()
    for path in FILES:
        text = path.read_text()
        lines = [node.lineno for node in ast.walk(ast.parse(text)) if is_put_together(node)]  # type: ignore[attr-defined]
        together |= {name_of(path)} if lines else set()
        assert not lines or name_of(path) in OWN_NAMES, f"{path}, lines {lines}: bind values, or give a reason above"
        for line in text.splitlines():
            assert "S608" not in line or re.search(r"# noqa: S608 - \w{2,}", line), f"{path}: no reason: {line.strip()}"
    assert sorted(OWN_NAMES.keys() - together) == [], "a file that no longer needs its exception has none"


NO_UNPICKLING = """
import os, sys

def look(event, arguments):
    if event == "pickle.find_class":
        os.write(2, b"UNPICKLED")
        os._exit(99)

sys.addaudithook(look)
"""


def test_nothing_is_unpickled_from_the_spool_to_an_answer(
    tmp_path: Path, database_path: Path, database_url: str
) -> None:
    """Python itself says that no class was looked up for a pickle while a spool is ingested, copied and asked."""
    (tmp_path / "sitecustomize.py").write_text(NO_UNPICKLING)
    paths = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environment = {**os.environ, "PYTHONPATH": paths, "DIODE_DATABASE_URL": str(database_path)}
    check = "import pickle; pickle.loads(pickle.dumps(print))"
    assert subprocess.run([sys.executable, "-c", check], env=environment, check=False).returncode == 99
    measurements = produce(1, range(5))
    with SpoolWriter(tmp_path / "spool") as writer:
        for measurement in measurements:
            writer.append(measurement)
    diode = PROGRAM.with_name("diode")
    for command in (
        (PROGRAM, "--once", "--spool", tmp_path / "spool"),
        (diode, "sync"),
        (diode, "db", "stats"),  # a query's own process sends its rows by pickle, see MAY_IMPORT
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said = [line for line in done.stderr.splitlines() if not line.startswith("implausible: ")]
        assert (done.returncode, said) == (0, [])
    assert_exactly_once(database_url, [m.uid for m in measurements], produced)


def test_deep_text_is_an_error() -> None:
    """Whoever parses a file's JSON or TOML expects it to be nested too deep for Python."""
    found = {str(path.relative_to(ROOT)) for path in FILES if any(unlimited(ast.parse(path.read_text())))}
    assert found == set(MAY_NEST)


def unlimited(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each parser's call that no handler of ``RecursionError`` surrounds."""
    guarded: set[ast.AST] = set()
    for node in ast.walk(tree):
        handlers = getattr(node, "handlers", []) or getattr(node, "items", [])
        if any("RecursionError" in ast.unparse(each) for each in handlers):
            guarded.update(inner for part in node.body for inner in ast.walk(part))  # type: ignore[attr-defined]
    parsers = {"json.loads", "json.load", "tomllib.load"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in guarded and ast.unparse(node.func) in parsers:
            yield node.lineno
