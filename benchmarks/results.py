"""Results of a benchmark that takes hours: a file with a JSON line each, so that a run can be resumed."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def append(path: Path, result: dict[str, Any]) -> None:
    """Append a result to a file, and print it on stderr."""
    line = json.dumps(result)
    with path.open("a") as output:
        output.write(line + "\n")
    print(line, file=sys.stderr)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results in a file; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
