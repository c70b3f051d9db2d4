"""Which matrix products a user's program compiles: it is run once, and the hook writes down what it is asked.

In zero mode, so that nothing is benchmarked meanwhile: the vendor's kernels are kept where no model knows the device.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.shapesets import as_text
from diode_collectors.spool.reading import segments_of
from diode_integration.tuning.plan import write
from diode_integration.tuning.running import run_python
from diode_store.console import print_note
from diode_store.decisions import DecisionRecord
from diode_store.errors import CodecError, DiodeError, SegmentError, SettingsError
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from diode_store.records import ProblemShape

_PROGRAM = """
import logging, os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
logging.getLogger("diode_integration").setLevel(logging.ERROR)  # that no model knows the device is why we are here
import torch_diode
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_SETTINGS = {
    "DIODE_MODE": "zero",
    "DIODE_UNKNOWN": "vendor",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "1",
    # A graph that comes whole from a cache is not lowered, so that its products would not be seen.
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": "0",
}
_UNSET = ("DIODE_DISABLE", "DIODE_MODEL", "DIODE_PICKS", "DIODE_CORRECTIONS", "DIODE_SIMILAR", "DIODE_REPORT")
"""What would have the hook decide in another way, or not at all."""


def list_products(command: str, folder: Path, hardware: Collection[bytes], *, reuse: bool) -> Path:
    """Run a program, and write the products that it compiled to a shape set; return that.

    Args:
        command: what ``resolved`` returned.
        folder: where the shape sets of programs are.
        hardware: the keys of the devices of which products are wanted.
        reuse: take the shape set of an earlier run of the same command, if there is one.

    Raises:
        SettingsError: it compiled nothing that can be measured.
        DiodeError: it failed, and what it said is on stderr; or the shape set cannot be written.
        KeyboardInterrupt: Ctrl-C or SIGTERM; the program was told, and has ended.
    """
    words = shlex.split(command)
    listed = folder / f"{_digest(words, hardware)}.txt"
    if reuse and listed.exists():
        print_note(f"going on with the products that {words[0]} compiled before")
        return listed
    print_note(f"running {words[0]}, to see what it compiles")
    with tempfile.TemporaryDirectory(prefix="diode-tune-") as spool:
        _run(words, spool)
        found = list(_decisions(Path(spool)))
    compiled = dict.fromkeys(decision.problem.shape for decision in found if decision.hardware.key in hardware)
    problems = list(_problems(compiled, Path(words[0]).stem))
    if not problems:
        raise SettingsError(_why_none(words[0], found, hardware))
    left = len(compiled) - len(problems)
    others = f"; {counted(left, 'other')} cannot" if left else ""
    print_note(f"{words[0]} compiled {counted(len(problems), 'matrix product')} that can be measured{others}")
    write(listed, as_text(problems))
    return listed


def resolved(command: str) -> str:
    """Return a Python file and its arguments, as a shell takes them, with the whole path of the file.

    Raises:
        SettingsError: it does not begin with a file that is there.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingsError(f"--from-script {command!r}: {error}") from None
    if not words or not Path(words[0]).is_file():
        raise SettingsError(f"--from-script {command!r}: no such file; name a Python program and its arguments")
    return shlex.join([str(Path(words[0]).resolve()), *words[1:]])


def _digest(words: list[str], hardware: Collection[bytes]) -> str:
    parts = [*words, *(key.hex() for key in sorted(hardware))]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


def _run(words: list[str], spool: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    environment |= {**_SETTINGS, "DIODE_SPOOL": spool}
    # What it prints is not the answer of this command.
    status, _ = run_python(_PROGRAM, words, environment=environment, stdout=sys.stderr, is_ours=False)
    if status:
        raise DiodeError(f"{words[0]} ended with exit status {status}, see above; mend that, and run it again")


def _decisions(spool: Path) -> Iterator[DecisionRecord]:
    for _, frames in segments_of(spool):
        for frame in frames:
            with contextlib.suppress(CodecError, SegmentError):  # torn, by a process of the program that was killed
                record = frame.record()
                if isinstance(record, DecisionRecord):
                    yield record


def _problems(shapes: Iterable[ProblemShape], name: str) -> Iterator[SweepProblem]:
    """Yield those products that a sweep can time."""
    for shape in shapes:
        with contextlib.suppress(SettingsError):  # another op or dtype, or an odd layout
            yield SweepProblem.of_shape(shape, f"{name}/compiled")


def _why_none(program: str, decisions: list[DecisionRecord], hardware: Collection[bytes]) -> str:
    elsewhere = sorted({d.hardware.name for d in decisions if d.hardware.key not in hardware})
    if elsewhere:
        return f"{program} compiled matrix products for {', '.join(elsewhere)} alone; name that with --device"
    if decisions:
        return f"none of the matrix products that {program} compiled can be measured by a sweep"
    return (
        f"{program} compiled no matrix product in its own process, which is the only one that is looked at; does it"
        " call what torch.compile returns?"
    )
