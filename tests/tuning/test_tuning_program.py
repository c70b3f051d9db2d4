"""`diode tune --from-script`: a real program is run, and what it compiles becomes a shape set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from diode_collectors.inductor.device import detect_hardware
from diode_store.errors import DiodeError, SettingsError
from diode_tuning.program import list_problems, resolved

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys, torch
from beside import SIZE
print("it prints", sys.argv[1:], __name__)
net = torch.compile(torch.nn.Sequential(torch.nn.Linear(SIZE, 128), torch.nn.GELU(), torch.nn.Linear(128, 32)))
with torch.no_grad():
    net(torch.randn(48, SIZE))
    net(torch.randn(48, SIZE))
torch.compile(torch.nn.Conv2d(4, 8, 3, 2, bias=False).requires_grad_(False), dynamic=False)(torch.randn(2, 4, 32, 32))
torch.compile(torch.mm)(torch.randn(48, 64, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64))
try:
    input()
except EOFError:
    print("it cannot read")
"""


@pytest.fixture
def here() -> set[bytes]:
    """Return the key of this CPU."""
    return {detect_hardware("cpu").key}


@pytest.mark.long
def test_what_a_program_compiles(
    tmp_path: Path, here: set[bytes], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each product once; it has its arguments and its folder, prints to stderr, and is not run again when asked."""
    monkeypatch.setenv("DIODE_DISABLE", "1")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("SIZE = 64")
    command = resolved(f"{program} --steps '2 3'")
    listed = list_problems(command, tmp_path / "programs", here, reuse=True)
    assert listed.read_text().splitlines() == [
        "addmm:48x128x64/nt/fp32  # train/compiled",
        "addmm:48x32x128/nt/fp32  # train/compiled",
        "convolution:2x4x32x32:8x3x3/nt/tf32/stride2  # train/compiled",
    ]
    out, err = capfd.readouterr()
    assert out == ""
    assert "it prints ['--steps', '2 3'] __main__" in err
    assert "compiled 3 problems that can be measured (addmm 2, convolution 1); 1 other cannot" in " ".join(err.split())
    assert "it cannot read" in err
    assert "abstains" not in err
    program.unlink()
    program.write_text("raise SystemExit(7)")
    assert list_problems(command, tmp_path / "programs", here, reuse=True) == listed
    with pytest.raises(DiodeError, match=r"train.py failed with exit status 7; fix the error above"):
        list_problems(command, tmp_path / "programs", here, reuse=False)


@pytest.mark.long
def test_a_program_that_compiles_nothing_here(tmp_path: Path, here: set[bytes]) -> None:
    """The message says whether there was nothing, or nothing for this device."""
    program = tmp_path / "idle.py"
    program.write_text("import torch")
    with pytest.raises(
        SettingsError, match=r"compiled no product, convolution or flex attention in its own process; check that"
    ):
        list_problems(str(program), tmp_path / "programs", here, reuse=False)
    program.write_text("import torch\ntorch.compile(torch.mm)(torch.randn(32, 64), torch.randn(64, 48))")
    with pytest.raises(SettingsError, match=r"compiled for .+ only; select that device with --device"):
        list_problems(str(program), tmp_path / "programs", {b"elsewhere"}, reuse=False)
    assert not (tmp_path / "programs").exists()


@pytest.mark.long
@pytest.mark.quick(1)
@pytest.mark.parametrize("command", ["missing.py --steps 1", "", "'unbalanced"])
def test_no_program(command: str) -> None:
    """What is no file is refused before anything is run."""
    with pytest.raises(SettingsError, match="--from-script"):
        resolved(command)
