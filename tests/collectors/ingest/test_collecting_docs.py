from __future__ import annotations

import re
from pathlib import Path

import pytest
from snippets import printed_by

from diode_collectors.spool.spool import Spool
from diode_store.wire.segments import read_segment

PAGE = (Path(__file__).parents[3] / "docs" / "ingest.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_example_of_collecting_runs(tmp_path: Path) -> None:
    """The page's Python example, on a CPU and with an empty cache, says what the page says and spools a record."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (promised,) = re.findall(r"# (FeedbackStats\(.*?), \.\.\.\)", code)
    assert printed_by(code, tmp_path).startswith(promised)
    (segment,) = Spool(tmp_path / "spool").sealed()
    assert len(list(read_segment(segment))) == 1
