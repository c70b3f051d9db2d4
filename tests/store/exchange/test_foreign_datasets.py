"""Files without times that are given as data sets of upstream's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_store.errors import ImportFileError
from diode_store.exchange.foreign.torch_diode_files import read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

SOLUTION = '{"name": "a", "config": [{"block_m": 16}]}'


def test_a_solution_is_named(tmp_path: Path, diode: RunCommand, database_url: str) -> None:
    """Once, and not by its fields."""
    path = tmp_path / "solution.json"
    path.write_text(SOLUTION)
    with pytest.raises(ImportFileError, match=r"solution.json is a max-autotune solution, which has no times"):
        read_file(path, Dataset)
    ended = diode("import", "--database", database_url, "--format", "torch-diode", str(path))
    assert ended.code == 1
    assert "is a max-autotune solution, which has no times" in ended.err
    assert "unknown fields" not in ended.err
