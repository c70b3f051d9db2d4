"""docs/formats.md: its table is complete, its options are there, its commands and its program run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import typer.main
from torch_diode_files import dataset

from diode_store.commands import export, import_
from diode_store.devices.known import require_device
from diode_store.exchange import jsonl
from diode_store.exchange.context import BadLine, ImportContext
from diode_store.exchange.foreign import t4
from diode_store.exchange.formats import ExportFormat, ImportFormat
from diode_store.exchange.parquet import EXTRAS, REQUIRED
from lanes import long

if TYPE_CHECKING:
    from conftest import RunCommand

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text(encoding="utf-8")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def blocks(kind: str) -> list[str]:
    """Return the page's blocks of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def options(app: typer.Typer) -> set[str]:
    """Return what a command takes."""
    command: Any = typer.main.get_command(app)
    return {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}


def test_every_format_has_its_row_and_its_part() -> None:
    """With what can be imported and exported."""
    rows = dict(re.findall(r"^\| \[`([\w-]+)`\]\(#[\w-]+\) \| (.*?) \|", PAGE, re.MULTILINE))
    assert rows.keys() == {fmt.value for fmt in ExportFormat}
    assert {name for name, imported in rows.items() if imported == "yes"} == set(ImportFormat) - {"auto"}
    assert re.findall(r"^## `([\w-]+)`", PAGE, re.MULTILINE) == list(rows)


def test_every_option_is_there() -> None:
    """And those of the two commands that say something of a format are on the page."""
    named = set(OPTION.findall(PAGE))
    known = options(import_.app) | options(export.app)
    assert named - known == set()
    assert known - named == {"--output", "--all-matches"}


def test_names_on_the_page() -> None:
    """Columns, outcomes and fields are those of the code."""
    parquet = PAGE.partition("## `parquet`")[2].partition("\n## ")[0]
    assert {name for name in (*REQUIRED, *EXTRAS) if f"`{name}`" not in parquet} == set()
    t4_part = PAGE.partition("## `t4`")[2].partition("\n## ")[0]
    assert {name for name in t4.OUTCOMES if f"`{name}`" not in t4_part} == set()
    assert f"version {t4.SCHEMA_VERSION}" in t4_part


@pytest.fixture
def folder(tmp_path: Path, database_path: Path, diode: RunCommand) -> Path:
    """Return a folder with the files that the page's commands read, and with a warehouse of measurements."""
    data = Path(__file__).parents[2] / "data" / "h200_excerpt.jsonl"
    runs = (tmp_path / "runs.jsonl.gz", tmp_path / "environment.json", tmp_path / "dataset.msgpack")
    runs[0].write_bytes(data.read_bytes())
    runs[1].write_text('{"torch": "2.13.0"}')
    runs[2].write_bytes(msgpack.packb(dataset()))
    result = {"configuration": {"x": 1}, "times": {"runtimes": [1.0]}, "invalidity": "correct", "correctness": 1}
    (tmp_path / "tuned.json").write_text(json.dumps({"results": [result], "schema_version": "1.0.0"}))
    url = f"sqlite:///{database_path}"
    added = diode("import", "--hardware", "h200", "--environment", str(runs[1]), str(data), "--database", url)
    assert added.code == 0
    return tmp_path


@pytest.mark.long
def test_the_commands_run(
    folder: Path, diode: RunCommand, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of the page, in one folder; every line ends well."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DIODE_DATABASE_URL", f"sqlite:///{database_path}")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    assert len(lines) > 12
    lines.sort(key=lambda line: not line.startswith("diode db upgrade"))  # what makes the other warehouse comes first
    for line in lines:
        words = shlex.split(line, comments=True)
        if "|" in words:
            pipe = ["/bin/bash", "-o", "pipefail", "-c", line]
            found = subprocess.run(pipe, capture_output=True, text=True, check=False)
            assert found.returncode == 0, (line, found.stderr)
            continue
        if "-o" in words:
            Path(words[words.index("-o") + 1]).unlink(missing_ok=True)
        ended = diode(*words[1:])
        assert ended.code == 0, (line, ended.err)


@long
def test_the_program_runs(folder: Path, diode: RunCommand, database_path: Path) -> None:
    """With a table that was exported."""
    url = f"sqlite:///{database_path}"
    out = str(folder / "table.json")
    assert diode("export", "--format", "inductor-lut", "-o", out, "--database", url).code == 0
    (program,) = blocks("python")
    check = "print(type(compiled).__name__, len(config.lookup_table.table))"
    found = subprocess.run(
        [sys.executable, "-c", f"{program}\n{check}"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout.split()[-1]) > 0


def test_the_example_line_is_one() -> None:
    """The page's line of jsonl is read."""
    (example,) = blocks("json")
    line = " ".join(example.split()).encode()
    (found,) = jsonl.read([line], ImportContext(hardware=require_device("h200")))
    assert not isinstance(found, BadLine), found
    assert len(found.timings) == 3
