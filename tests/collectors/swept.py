"""One real sweep on this CPU, which several tests look at."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DIODE_DATABASE_URL", "DIODE_SPOOL")
"""What a sweep takes from the environment."""
_PAGE = Path(__file__).parents[2] / "docs" / "sweep.md"


class Swept(NamedTuple):
    """A sweep that is done."""

    arguments: list[str]
    finished: subprocess.CompletedProcess[str]
    folder: Path
    """Where it ran."""

    @property
    def output(self) -> Path:
        """The file it wrote."""
        return self.folder / "cpu.jsonl"

    @property
    def spool(self) -> Path:
        """The records."""
        return self.folder / "cpu.jsonl.spool"


def sweep_of_the_page(folder: Path) -> Swept:
    """Run the command of docs/sweep.md that needs no GPU, in ``folder``."""
    (command,) = re.findall(r"^diode-collect (.*--device cpu .*)$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    arguments = shlex.split(command)
    finished = subprocess.run(
        [Path(sys.executable).with_name("diode-collect"), *arguments],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return Swept(arguments, finished, folder)
