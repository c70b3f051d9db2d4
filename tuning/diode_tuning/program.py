"""Problems that a user's program compiles: run the program once and record the hook's decisions.

The program runs in zero mode, which benchmarks nothing and keeps the vendor kernels if no model knows the device.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.shapesets import as_text
from diode_collectors.spool.reading import segments_of
from diode_store.command_line.console import print_note
from diode_store.command_line.render import counted
from diode_store.decisions import DecisionRecord
from diode_store.errors import CodecError, DiodeError, SegmentError, SettingsError
from diode_store.processes.programs import run_python
from diode_store.system.files import real_path
from diode_tuning.plan import write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from diode_store.records import ProblemShape

_PROGRAM = """
import logging, os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
logging.getLogger("diode_integration").setLevel(logging.ERROR)  # hides the warning that no model knows the device
import torch_diode
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SETTINGS = {
    "DIODE_MODE": "zero",
    "DIODE_UNKNOWN": "vendor",
    "DIODE_PICKS": "",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1",
    # A graph from a cache is not lowered, so its problems would be missing.
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
}
_UNSET = ("DIODE_DISABLE", "DIODE_MODEL", "DIODE_PLAIN", "DIODE_CORRECTIONS", "DIODE_REPORT")
"""Settings that would change or prevent the hook's decisions."""


def list_problems(command: str, folder: Path, hardware: Collection[bytes], *, reuse: bool) -> Path:
    """Run a program, write the problems that it compiles to a shape set, and return that file's path.

    Args:
        command: Command as ``resolved`` returns it.
        folder: Folder of the programs' shape sets.
        hardware: Keys of the devices whose problems are wanted.
        reuse: Use the shape set of an earlier run of the same command, if there is one.

    Raises:
        SettingsError: the program compiled nothing that can be measured.
        DiodeError: the program failed and its output is on stderr, or the shape set cannot be written.
        KeyboardInterrupt: Ctrl-C or SIGTERM came, and the program was stopped.
    """
    words = shlex.split(command)
    listed = folder / f"{_digest(words, hardware)}.txt"
    if reuse and listed.exists():
        print_note(f"using the problems that {words[0]} compiled before")
        return listed
    print_note(f"running {words[0]} to list its products, convolutions and calls of flex attention")
    with tempfile.TemporaryDirectory(prefix="diode-tune-") as spool:
        _run(words, spool)
        found = list(_decisions(Path(spool)))
    compiled = dict.fromkeys(decision.problem.shape for decision in found if decision.hardware.key in hardware)
    problems = list(_problems(compiled, Path(words[0]).stem))
    if not problems:
        raise SettingsError(_why_none(words[0], found, hardware))
    left = len(compiled) - len(problems)
    others = f"; {counted(left, 'other')} cannot" if left else ""
    ops = ", ".join(f"{op} {number:,}" for op, number in sorted(Counter(problem.op for problem in problems).items()))
    print_note(f"{words[0]} compiled {counted(len(problems), 'problem')} that can be measured ({ops}){others}")
    write(listed, as_text(problems))
    return listed


def resolved(command: str) -> str:
    """Return the command of a Python program in shell form, with the absolute path of the program.

    Raises:
        SettingsError: the command does not begin with an existing file.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"--from-script {command!r}: {error}") from None
    if not words or not Path(words[0]).is_file():
        raise SettingsError(f"--from-script {command!r}: no such file; name a Python program and its arguments")
    return shlex.join([str(real_path(words[0])), *words[1:]])


def _digest(words: list[str], hardware: Collection[bytes]) -> str:
    parts = [*words, *(key.hex() for key in sorted(hardware))]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _run(words: list[str], spool: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    environment |= {**_SETTINGS, "DIODE_SPOOL": spool}
    # The program's output goes to stderr, because stdout is for this command's own answer.
    status, _ = run_python(_PROGRAM, words, environment=environment, stdout=sys.stderr, is_ours=False)
    if status:
        raise DiodeError(f"{words[0]} failed with exit status {status}; fix the error above and run the command again")


def _decisions(spool: Path) -> Iterator[DecisionRecord]:
    for _, frames in segments_of(spool):
        for frame in frames:
            with contextlib.suppress(CodecError, SegmentError):  # torn, by a process of the program that was killed
                record = frame.record()
                if isinstance(record, DecisionRecord):
                    yield record


def _problems(shapes: Iterable[ProblemShape], name: str) -> Iterator[SweepProblem]:
    """Yield the problems that a sweep can time."""
    for shape in shapes:
        with contextlib.suppress(SettingsError):  # another op or dtype, or an odd layout
            yield SweepProblem.of_shape(shape, f"{name}/compiled")


def _why_none(program: str, decisions: list[DecisionRecord], hardware: Collection[bytes]) -> str:
    elsewhere = sorted({d.hardware.name for d in decisions if d.hardware.key not in hardware})
    if elsewhere:
        return f"{program} compiled for {', '.join(elsewhere)} only; select that device with --device"
    if decisions:
        return f"a sweep can measure nothing of what {program} compiled; name problems with --shape"
    return (
        f"{program} compiled no product, convolution or flex attention in its own process; check that it calls the"
        " compiled function there, not in a child process, that the sizes of convolutions do not vary, and for flex"
        " attention that it runs on a GPU"
    )
