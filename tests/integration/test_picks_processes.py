"""One picks file, many processes: each chooses the same, and so does a machine without the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from picks_of import VENDOR, tile, write

if TYPE_CHECKING:
    from pathlib import Path

COMPILE = """
import json, os, sys
import torch, torch_diode
torch_diode.install(hardware="NVIDIA H200", observe=True, mode="zero")
torch._inductor.config.max_autotune_gemm_backends = "ATEN"
a, b = (128, 512), (512, 256)
shapes = {"mm": (a, b), "addmm": ((256,), a, b), "bmm": ((4, *a), (4, *b))}
with torch.no_grad():
    for op, sizes in shapes.items():
        inputs = [torch.zeros(size) for size in sizes]
        torch.compile(getattr(torch, op), mode="max-autotune")(*inputs)
handler = sys.modules["diode_integration.install"].installed()
decided = [
    [d.op, d.decided_by, d.hardware, d.reason, [(c.config.describe(), c.predicted_us) for c in d.chosen]]
    for d in handler.decisions()
]
print(json.dumps([handler.uuid(), decided]))
"""


def chosen_by(number: int, picks: Path, folder: Path) -> str:
    """Return what a process of its own decided, with caches of its own."""
    environment = {
        **os.environ,
        "DIODE_DISABLE": "1",
        "DIODE_PICKS": str(picks),
        "PYTHONHASHSEED": str(number),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / str(number)),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.long
@pytest.mark.parametrize("processes", [3, 30])
def test_every_process_chooses_the_same(processes: int, tmp_path: Path) -> None:
    """The decisions of each, with times and reasons, and its part of Inductor's cache key, are equal in every byte."""
    kernels = {"mm": (tile(), VENDOR["mm"]), "addmm": (VENDOR["addmm"], tile()), "bmm": (tile("bmm"),)}
    path = write(tmp_path / "p.json", kernels)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda number: chosen_by(number, path, tmp_path), range(processes)))
    assert len(set(found)) == 1
    _, decided = json.loads(found[0])
    expected = [(op, configs[0].describe()) for op, configs in kernels.items()]
    assert [(op, chosen[0][0]) for op, _, _, _, chosen in decided] == expected
    assert {(by, hardware) for _, by, hardware, _, _ in decided} == {("picks", "NVIDIA H200")}


NONSENSE = """
import torch, torch_diode
x = torch.eye(16)
assert torch.equal(torch.compile(lambda a: a @ a, mode="max-autotune")(x), x)
print("done")
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in which every warning is an error, but for those of torch itself."""
    own = ["-W", "error", "-W", "ignore::DeprecationWarning", "-W", "ignore:TypedStorage"]
    return subprocess.run(
        [sys.executable, *own, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.long
def test_nonsense_in_the_environment_stops_nobody() -> None:
    """One line says what is wrong, and the program goes on."""
    done = run(NONSENSE, DIODE_PICKS="/nowhere/picks.json")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if "picks" in line]
    assert said == [
        (
            "no picks file is used: DIODE_PICKS: /nowhere/picks.json: cannot read the picks (No such file or directory)"
            "; write it again with `diode lock`"
        )
    ]


LOCK = """
import torch, torch_diode
with torch_diode.lock("{path}"):
    torch.compile(lambda a: a @ a, mode="max-autotune")(torch.eye(16))
print(open("{path}").read())
"""


@pytest.mark.long
def test_locking_a_program(tmp_path: Path) -> None:
    """A program that locks runs where warnings are errors, and its file makes the next one choose the same."""
    path = tmp_path / "p.json"
    done = run(LOCK.format(path=path), DIODE_DISABLE="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "first"))
    assert done.returncode == 0, done.stderr
    assert '"problem": "mm fp32 16x16x16 nn"' in done.stdout
    again = run(
        "import torch, torch_diode\n"
        "torch.compile(lambda a: a @ a, mode='max-autotune')(torch.eye(16))\n"
        "print(torch_diode.get_stats()['picked_from_file'])",
        DIODE_PICKS=str(path),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert (again.returncode, again.stdout) == (0, "1\n"), again.stderr
