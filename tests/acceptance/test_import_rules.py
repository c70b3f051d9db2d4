"""What may be imported where, checked in fresh interpreters."""

from __future__ import annotations

import subprocess
import sys

import pytest

TORCH_FREE = (
    "diode_store",
    "diode_store.analytics",
    "diode_store.cli",
    "diode_store.codec",
    "diode_store.lake",
    "diode_store.store",
    "diode_store.exchange.jsonl",
    "diode_collectors.cli",
    "diode_collectors.daemon",
    "diode_collectors.ingest",
    "diode_collectors.spool",
    "diode_trainer.cli",
    "diode_trainer.features",
)
LIGHT = (
    "diode_store.codec",
    "diode_store.columns",
    "diode_store.devices",
    "diode_store.files",
    "diode_store.normalise",
    "diode_store.records",
    "diode_store.resources",
    "diode_collectors.feedback",
    "diode_collectors.inductor",
    "diode_collectors.spool",
    "diode_trainer.artifact",
    "diode_trainer.features",
    "diode_trainer.models",
    "diode_integration.choices",
    "diode_integration.inductor_integration",
    "diode_integration.install",
    "diode_integration.policy",
    "diode_integration.predictor",
    "diode_integration.registry",
)
HEAVY = ("sqlalchemy", "alembic", "duckdb", "pyarrow", "typer", "rich")


def loaded_after_import(module: str, wanted: tuple[str, ...]) -> list[str]:
    """Import ``module`` in a fresh interpreter and return which of ``wanted`` that loaded."""
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({wanted!r})))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return finished.stdout.split()


@pytest.mark.parametrize("module", TORCH_FREE)
def test_module_does_not_import_torch(module: str) -> None:
    """Modules that run on machines and in commands without a compiler start without torch."""
    assert loaded_after_import(module, ("torch", "triton")) == []


@pytest.mark.parametrize("module", LIGHT)
def test_module_needs_no_warehouse(module: str) -> None:
    """What runs inside a user's compile needs neither the database nor the analytics packages."""
    assert loaded_after_import(module, HEAVY) == []


def test_nothing_connects_at_import() -> None:
    """Importing every component creates no file: nothing registers or connects at import."""
    code = (
        "import builtins, sys\n"
        "real = builtins.open\n"
        "def guarded(file, mode='r', *a, **k):\n"
        "    if any(c in mode for c in 'wax+'):\n"
        "        print('opened', file)\n"
        "    return real(file, mode, *a, **k)\n"
        "builtins.open = guarded\n"
        "import diode_store.store, diode_store.analytics, diode_collectors.daemon, diode_trainer.cli\n"
    )
    finished = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == ""
