"""What the page on collecting in one's own process shows is what happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from snippets import printed_by
from spool_reading import spooled

from diode_collectors.matmul import MatmulDatasetCollector
from diode_store.exchange.foreign.torch_diode_files import read_file
from diode_store.exchange.foreign.torch_diode_types import Dataset, Table

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "collect_in_process.md").read_text(encoding="utf-8")
LAYOUT = (DOCS / "data-set-layout.md").read_text(encoding="utf-8")
DATASET, SPOOL, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
def test_the_data_set_of_the_page(tmp_path: Path) -> None:
    """On a CPU both files are there, empty, and the two kernels are counted."""
    said = printed_by(DATASET, tmp_path)
    assert said.startswith("FeedbackStats(events=1, recorded=1, timings=2, ")
    assert said.count("timings left out: ") == 2
    assert read_file(tmp_path / "matmul_dataset.json", Dataset) == Dataset()
    assert read_file(tmp_path / "matmul_table.msgpack", Table) == Table()


@pytest.mark.long
def test_the_spool_of_the_page(tmp_path: Path) -> None:
    """The record is there, with both kernels."""
    assert printed_by(SPOOL, tmp_path).startswith("FeedbackStats(events=1, recorded=1, timings=2, ")
    (found,) = spooled(tmp_path / "spool")
    assert len(found.timings) == 2


def test_the_file_of_the_page() -> None:
    """It is a data set, and comes back as it was."""
    (text,) = re.findall(r"```json\n(.*?)```", LAYOUT, re.DOTALL)
    assert Dataset.from_dict(json.loads(text)).to_dict() == json.loads(text)


def test_the_methods_of_the_page() -> None:
    """Each public name of the collector is on the page."""
    public = {name for name in dir(MatmulDatasetCollector) if not name.startswith("_")}
    assert {name for name in public if f"`{name}" not in PAGE} == set()
