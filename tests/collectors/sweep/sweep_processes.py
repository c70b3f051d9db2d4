"""Real sweeps in processes of their own, for tests that interrupt, kill and restart them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from spool_reading import spooled

from diode_collectors.problems.problem import parse_problem
from diode_collectors.spool.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.records import Measurement

HERE = Path(__file__).parent
_PATIENCE_S = 120.0
# Asking g++ what this CPU can do takes ten seconds, and a pool of compile workers is of no use to one kernel.
QUICKER = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}


class Sweep:
    """A sweep in a process of its own; all its files go below ``folder``."""

    def __init__(
        self,
        folder: Path,
        problems: Iterable[str | tuple[str, str]],
        *,
        quick: bool = True,
        environment: Mapping[str, str] | None = None,
        **told: Any,
    ) -> None:
        """Start it.

        Args:
            folder: where its spool and its temporary files are.
            problems: as people type them, or with a name that tells a quick lane what to do.
            quick: whether its lanes make their measurements up.
            environment: more variables for it and its lanes.
            told: see ``run_sweep.py``.
        """
        self.folder, self.spool = folder, folder / "spool"
        self.temporary, state = folder / "temporary", folder / "state"
        for path in (self.temporary, state):
            path.mkdir(exist_ok=True, parents=True)
        pairs = [(given, "") if isinstance(given, str) else given for given in problems]
        paths = [str(HERE), str(HERE.parent), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
        self.events: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "run_sweep.py"),
                json.dumps({"spool": str(self.spool), "problems": pairs, "quick": quick, "dtype": "float32", **told}),
            ],
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
            env={
                **os.environ,
                **QUICKER,
                "TMPDIR": str(self.temporary),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "QUICK_LANE_STATE": str(state),
                **(environment or {}),
            },
        )

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever is left of it."""
        for pid in [self.process.pid, *self.alive()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """Return the next event of a kind, with these values of its fields."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.events.append(said)
            if said["event"] == event and all(said[name] == value for name, value in fields.items()):
                return dict(said)
        raise AssertionError(f"{event} {fields} never came: {self.events}")

    def report(self) -> dict[str, Any]:
        """Wait for the end and return the report."""
        report = self.wait_for("report")
        assert self.process.wait(_PATIENCE_S) == 0
        return report

    def error(self) -> dict[str, Any]:
        """Wait for the end and return the error."""
        error = self.wait_for("error")
        assert self.process.wait(_PATIENCE_S) == 0
        return error

    def of_kind(self, event: str) -> list[dict[str, Any]]:
        """Return the events of a kind that came so far."""
        return [said for said in self.events if said["event"] == event]

    def alive(self) -> list[int]:
        """Return the processes that this sweep started, directly or not, and that still run: their TMPDIR tells."""
        marked = f"TMPDIR={self.temporary}".encode()
        return [
            pid
            for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
            if pid != self.process.pid and any(entry.startswith(marked) for entry in _environment_of(pid))
        ]

    def lanes(self) -> list[int]:
        """Return the processes that are lanes."""
        return [pid for pid in self.alive() if b"lane" in b" ".join(_command_of(pid)[4:5])]


def _environment_of(pid: int) -> list[bytes]:
    return _zeros(Path(f"/proc/{pid}/environ"))


def _command_of(pid: int) -> list[bytes]:
    return _zeros(Path(f"/proc/{pid}/cmdline"))


def _zeros(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\0")
    except OSError:  # it is gone
        return []


def recorded(spool: Path) -> list[Measurement]:
    """Return every measurement of a spool that nobody writes to, damage excluded."""
    assert [adopted.problem for adopted in Spool(spool).adopt_idle() if adopted.problem] == []
    return spooled(spool)


def counted(spool: Path) -> Counter[bytes]:
    """Count the measurements of each problem."""
    return Counter(measurement.problem.key for measurement in recorded(spool))


def once_each(problems: Iterable[str], dtype: str = "float32") -> Counter[bytes]:
    """Return what ``counted`` should be."""
    return Counter(parse_problem(text, dtype=dtype).problem().key for text in problems)
