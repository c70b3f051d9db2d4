"""What may be imported where, checked in fresh interpreters over every module there is."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# Which modules of a component compile or train; the others start without torch.
WITH_TORCH = {
    "diode_store": set(),
    "diode_collectors": {
        "inductor.device",
        "feedback.collector",
        "inductor.adapter",
        "inductor.choice_lists",
        "feedback.records",
        "feedback.listening",
        "sweep.lane.sampling",
    },
    "diode_explorer": {"judging.assessing"},
}
TORCH_FREE_TRAINER = (
    "commands.train",
    "commands.evaluate",
    "commands.compare",
    "commands.models",
    "features",
    "launch",
    "card",
)
# What runs in a user's process or on a GPU machine, where there is often no more than these packages.
ALLOWED_IN_LIGHT = {"torch", "triton", "numpy", "msgpack", "jinja2"}  # torch requires jinja2, and Inductor loads it
LIGHT_STORE = (
    "wire.codec",
    "decisions",
    "candidates.columns",
    "devices.descriptor",
    "devices.known",
    "errors",
    "exchange.foreign.inductor_lut",
    "exchange.picks",
    "exchange.picks_reading",
    "exchange.foreign.torch_diode",
    "exchange.foreign.torch_diode_files",
    "candidates.default_space",
    "values.keys",
    "ops",
    "timing.noise",
    "candidates.names",
    "timing.plausible",
    "records",
    "system.resources",
    "timing.roofline",
    "values.safely",
    "wire.segment_layout",
    "wire.segments",
)
LIGHT_COLLECTORS = (
    "sweep.agreement",
    "sweep.already",
    "feedback.coverage",
    "inductor.device",
    "sweep.device_state",
    "feedback.collector",
    "inductor.adapter",
    "inductor.choice_lists",
    "feedback.records",
    "feedback.listening",
    "matmul",
    "feedback.offered",
    "problems.choices",
    "problems.selection",
    "spool.background",
    "spool.quarantine",
    "spool.reading",
    "spool.spool",
    "sweep.statistics",
    "sweep.engine",
    "sweep.lane.process",
    "sweep.lane.measuring",
    "sweep.lane.sampling",
    "sweep.devices",
    "sweep.sets",
)
LIGHT_TRAINER = ("artifact", "card", "features", "launch", "matmul_v1", "models", "scoring")


def modules_of(package: str) -> list[str]:
    """Return the names of every module below ``package``."""
    found = find_spec(package)
    assert found is not None
    walked = pkgutil.walk_packages(found.submodule_search_locations, f"{package}.")
    return [package, *(module.name for module in walked)]


def heavy_packages() -> list[str]:
    """Return the import names of our dependencies that light modules must not load."""
    names = {re.split(r"[\s<>=!~;\[]", requirement)[0] for requirement in requires("torch-diode") or ()}
    return sorted(name for name in names if name not in ALLOWED_IN_LIGHT)


def loaded_by(modules: list[str], wanted: list[str]) -> list[str]:
    """Import ``modules`` in a fresh interpreter and return which of ``wanted`` that loaded."""
    code = f"import sys, {', '.join(modules)}; print(*sorted(set(sys.modules) & set({wanted!r})))"
    return run(code).split()


def run(code: str) -> str:
    """Run ``code`` in a fresh interpreter and return what it printed."""
    environment = {"DIODE_DISABLE": "1", "PATH": ""}
    finished = subprocess.run(
        [sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize("package", WITH_TORCH)
def test_modules_without_torch(package: str) -> None:
    """The warehouse, the explorer, and the collectors but for those that compile, start without torch."""
    allowed = {f"{package}.{name}" for name in WITH_TORCH[package]}
    modules = [name for name in modules_of(package) if name not in allowed]
    assert len(modules) > 10
    assert loaded_by(modules, ["torch", "triton"]) == []


def test_commands_of_the_trainer_start_without_torch() -> None:
    """The trainer's commands and its features need torch only once they train or score."""
    assert loaded_by([f"diode_trainer.{name}" for name in TORCH_FREE_TRAINER], ["torch", "triton"]) == []


def test_light_modules_need_no_warehouse() -> None:
    """What runs inside a user's compile loads none of our dependencies but torch, triton, numpy and msgpack."""
    heavy = heavy_packages()
    assert {"sqlalchemy", "alembic", "duckdb", "pyarrow", "typer", "rich"} <= set(heavy)
    light = {"diode_store": LIGHT_STORE, "diode_collectors": LIGHT_COLLECTORS, "diode_trainer": LIGHT_TRAINER}
    modules = [f"{package}.{name}" for package, names in light.items() for name in names]
    assert loaded_by([*modules, "torch_diode", *modules_of("diode_integration")], heavy) == []


def test_migrations_import_only_alembic_and_sqlalchemy() -> None:
    """A migration stays as it was written, whatever becomes of our own code."""
    imported = set()
    for path in sorted((CHECKOUT / "migrations").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"alembic", "sqlalchemy"}


def test_nothing_connects_at_import() -> None:
    """Importing every component writes no file, opens no database and no connection."""
    found = [*modules_of("diode_store"), *modules_of("diode_collectors"), *modules_of("diode_trainer")]
    # A class of Inductor's is its base, and Inductor makes its cache folder when it is imported; only lanes import it.
    modules = [module for module in found if module != "diode_collectors.sweep.lane.sampling"]
    code = (
        "import os, sys, torch\n"
        "writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT\n"
        "def audit(event, arguments):\n"
        "    if event in ('sqlite3.connect', 'socket.connect', 'os.mkdir', 'os.rename', 'os.remove'):\n"
        "        print(event, arguments)\n"
        "    if event == 'open' and isinstance(arguments[2], int) and arguments[2] & writing:\n"
        "        print(event, arguments)\n"
        "sys.addaudithook(audit)\n"
        f"import {', '.join(modules)}\n"
    )
    assert run(code) == ""
