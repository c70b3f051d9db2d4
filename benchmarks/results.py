"""Results of a benchmark that takes hours: a JSON line each in a file, so that it can be spread over several runs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def append(path: Path, result: dict[str, Any]) -> None:
    """Add a result to a file, and show it on stderr."""
    line = json.dumps(result)
    with path.open("a") as output:
        output.write(line + "\n")
    print(line, file=sys.stderr)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results of a file; none if it is not there yet."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
