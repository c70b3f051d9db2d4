"""Strange entries in a report's folder: none is replaced, removed or waited for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from diode_explorer.report import BEGINNING, write
from diode_store.errors import ReportError
from strange import everything_in, strange_entries

if TYPE_CHECKING:
    from pathlib import Path


def test_a_report_is_written_beside_what_is_strange(tmp_path: Path) -> None:
    """Pages of an earlier report go; everything else stays."""
    folder = tmp_path / "report"
    write({"index.html": BEGINNING + b"1", "old.html": BEGINNING}, folder)
    strange_entries(folder, tmp_path / "outside", ".html")
    before = {**everything_in(folder), **everything_in(tmp_path / "outside")}
    before.pop("old.html")
    write({"index.html": BEGINNING + b"2"}, folder)
    after = {**everything_in(folder), **everything_in(tmp_path / "outside")}
    assert after.pop("index.html").content == BEGINNING + b"2"
    before.pop("index.html")
    # An empty file is nobody's page, so a report takes its place.
    assert before.keys() - after.keys() == {"empty.html"}
    assert {name: before[name] for name in after} == after


@pytest.mark.parametrize("kind", ["loop", "pipe", "folder"])
def test_a_page_has_the_name_of_something_strange(tmp_path: Path, kind: str) -> None:
    """It is told and stays."""
    path = tmp_path / "index.html"
    {"loop": lambda: path.symlink_to(path), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    with pytest.raises(ReportError, match="exists and is not a page of a report"):
        write({"index.html": BEGINNING}, tmp_path)
