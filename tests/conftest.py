"""Fixtures every component's tests share: a real migrated warehouse, records, real data, our commands."""

from __future__ import annotations

import io
import shutil
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest

from diode_store.normalise import kernel_config
from diode_store.records import (
    Environment,
    Hardware,
    KernelConfig,
    Measurement,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from diode_store.store import Store

DATA = Path(__file__).parent / "data"

H200 = Hardware("nvidia", "NVIDIA H200", "sm_90", 132)
ENVIRONMENT = Environment(torch="2.11.0+cu130", triton="3.6.0", compute="cuda 13.0", driver="580.95", python="3.12.3")


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep every test away from the settings and the warehouse of whoever runs it."""
    for name in ("DIODE_DATABASE_URL", "DIODE_SPOOL", "DIODE_LAKE", "DIODE_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))


@pytest.fixture(scope="session")
def _template_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate one SQLite file a session; tests get copies of it."""
    from diode_store import database, migrate

    path = tmp_path_factory.mktemp("template") / "warehouse.db"
    engine = database.make_engine(str(path))
    migrate.upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture
def database_path(_template_database: Path, tmp_path: Path) -> Path:
    """Return the path of an empty, migrated warehouse."""
    return Path(shutil.copy(_template_database, tmp_path / "warehouse.db"))


@pytest.fixture
def database_url(database_path: Path) -> str:
    """Return the URL of an empty, migrated warehouse."""
    return f"sqlite:///{database_path}"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Return the empty warehouse, open for writing."""
    from diode_store.store import Store

    with Store.open(database_url) as opened:
        yield opened


@pytest.fixture
def jsonl_path(tmp_path: Path) -> Path:
    """Return a copy of six real H200 problems: mm nn, nt and tn, addmm, bmm, and a bmm of one batch."""
    return Path(shutil.copy(DATA / "h200_excerpt.jsonl", tmp_path / "h200_excerpt.jsonl"))


class MakeMeasurement(Protocol):
    """Makes a measurement; every number makes another one."""

    def __call__(self, number: int = 0, *, runtimes: Sequence[float | None] = ..., **overrides: Any) -> Measurement:
        """Return a measurement; ``overrides`` replace its fields."""


@pytest.fixture
def make_measurement() -> MakeMeasurement:
    """Return a maker of measurements; a runtime of None stands for a choice that ran out of resources."""

    def make(
        number: int = 0, *, runtimes: Sequence[float | None] = (10.5, 20.25, None), **overrides: Any
    ) -> Measurement:
        fields: dict[str, Any] = {
            "uid": number.to_bytes(16, "big"),
            "hardware": H200,
            "environment": ENVIRONMENT,
            "problem": matmul(64 + number, 256, 128),
            "timings": tuple(_timing(position, runtime) for position, runtime in enumerate(runtimes)),
            "source": Source.IMPORT,
            "measured_at": datetime(2026, 11, 20, 12, 30, tzinfo=UTC),
        }
        return Measurement(**{**fields, **overrides})

    return make


def matmul(m: int, n: int, k: int, dtype: str = "bfloat16") -> Problem:
    """Return the mm of a row-major (m, k) by a row-major (k, n)."""
    return Problem.create("mm", (TensorSpec(dtype, (m, k), (k, 1)), TensorSpec(dtype, (k, n), (n, 1))))


def triton_config(block_m: int = 64, **kwargs: Any) -> KernelConfig:
    """Return a config of ``triton::mm``."""
    defaults = {"BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
    return kernel_config("triton_mm", {**defaults, "ACC_TYPE": "tl.float32", "ALLOW_TF32": False, **kwargs})


def _timing(position: int, runtime: float | None) -> Timing:
    config = triton_config(16 * position) if position else kernel_config("mm", {})
    return Timing(config, runtime, Outcome.OUT_OF_RESOURCES if runtime is None else Outcome.OK)


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class RunCommand(Protocol):
    """Runs ``diode`` with arguments."""

    def __call__(self, *args: str) -> CommandResult:
        """Run it and return how it ended."""


@pytest.fixture
def diode() -> RunCommand:
    """Return a function that runs ``diode ARGS...`` in this process, as the console script would."""
    from diode_store.cli import main

    def run(*args: str) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        code = ended.value.code
        return CommandResult(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())

    return run
