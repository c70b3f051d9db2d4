from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from diode_collectors.spool.spool import Spool
from diode_store.wire.segments import read_segment

PAGE = (Path(__file__).parents[3] / "docs" / "ingest.md").read_text(encoding="utf-8")


def test_the_example_of_collecting_runs(tmp_path: Path) -> None:
    """The page's Python example, on a CPU and with an empty cache, says what the page says and spools a record."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    (promised,) = re.findall(r"# (FeedbackStats\(.*?), \.\.\.\)", code)
    assert ended.stdout.startswith(promised)
    (segment,) = Spool(tmp_path / "spool").sealed()
    assert len(list(read_segment(segment))) == 1
