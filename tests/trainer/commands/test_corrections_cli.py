from __future__ import annotations

import json
from typing import TYPE_CHECKING

from diode_trainer import artifact
from diode_trainer.corrections.corrections import read_corrections

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand


def test_corrections_of_a_model(trained: Path, tmp_path: Path, diode: RunCommand) -> None:
    """The file corrects the model named on every problem that was well measured, and the command says how to use it."""
    output = tmp_path / "c.json"
    result = diode("corrections", "--hardware", "h200", "--model", "quick", "-o", str(output))
    assert result.code == 0, result.err
    found = read_corrections(output)
    assert (found.model_name, found.model_sha256) == ("quick", artifact.load(trained).sha256)
    assert result.out.splitlines() == [
        f"corrected quick on 6 problems, {found.configs} configs",
        f"file   {output}",
        f"use it: DIODE_CORRECTIONS={output}, or corrections='{output}' of the hook",
    ]
    assert result.err.splitlines() == [
        "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)",
        "left out 309 timings under 30 us that may include the launch",
    ]


def test_json(trained: Path, tmp_path: Path, diode: RunCommand) -> None:
    """Scripts get the same as one object."""
    options = ("--hardware", "h200", "--model", str(trained), "--source", "sweep", "-o", str(tmp_path / "c.json"))
    result = diode("corrections", *options, "--json")
    assert json.loads(result.out) == {
        "file": str(tmp_path / "c.json"),
        "model": "quick",
        "sha256": artifact.load(trained).sha256,
        "problems": 6,
        "configs": read_corrections(tmp_path / "c.json").configs,
        "too_short": 309,
    }


def test_no_measurements_of_that_kind(trained: Path, tmp_path: Path, diode: RunCommand) -> None:
    """One line says what was looked for, and nothing is written."""
    options = ("--hardware", "h200", "--model", str(trained), "--source", "feedback", "-o", str(tmp_path / "c.json"))
    result = diode("corrections", *options)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: no measurements from feedback on NVIDIA H200; collect ")
    assert not (tmp_path / "c.json").exists()


def test_another_file_is_not_replaced(trained: Path, tmp_path: Path, diode: RunCommand) -> None:
    """Corrections replace earlier ones, and no file of another kind, such as the model."""
    command = ("corrections", "--hardware", "h200", "--model", str(trained), "-o")
    before = trained.read_bytes()
    result = diode(*command, str(trained))
    assert (result.code, result.out, result.err) == (
        1,
        "",
        f"error: {trained} exists and holds no corrections, so it was not replaced; give another --output\n",
    )
    assert trained.read_bytes() == before
    assert [diode(*command, str(tmp_path / "c.json")).code for _ in range(2)] == [0, 0]
