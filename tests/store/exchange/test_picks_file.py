"""The format of a picks file: what is written is read, in a fixed order, and nothing else is."""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diode_store.candidates.names import kernel_config
from diode_store.errors import ExportError, PicksError
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.records import Environment, Problem, TensorSpec
from record_strategies import problems
from samples import ENVIRONMENT, H200, as_tf32, matmul, triton_config

if TYPE_CHECKING:
    from collections.abc import Callable

VENDOR = kernel_config("mm", {})
A, B, C = (triton_config(block) for block in (32, 64, 128))
HASHED = replace(ENVIRONMENT, template_hashes={"triton::mm": "d4b9", "triton::unused": "0000"})
NEWER = replace(HASHED, torch="2.13.0", template_hashes={"triton::mm": "d998"})
ADDMM = Problem.create(
    "addmm",
    (
        TensorSpec("bfloat16", (24,), (1,)),
        TensorSpec("bfloat16", (8, 16), (16, 1)),
        TensorSpec("bfloat16", (16, 24), (1, 16)),
    ),
    {"alpha": 0.5},
)
PICKS = (
    Pick(matmul(64, 256, 128), (A, VENDOR), HASHED, 12.3456789, "graph"),
    Pick(ADDMM, (kernel_config("bias_addmm", {}),), NEWER),
    Pick(as_tf32(matmul(64, 256, 128, "float32")), (B, A, C), NEWER, 7.0, "write_flush"),
)
FILE = """{
 "format": "torch-diode picks",
 "version": 1,
 "device": {"vendor": "nvidia", "name": "NVIDIA H200", "arch": "sm_90", "multiprocessors": 132},
 "allow_changed_template": false,
 "environments": {
  "1": {
   "torch": "2.11.0+cu130",
   "triton": "3.6.0",
   "compute": "cuda 13.0",
   "driver": "580.95",
   "python": "3.12.3",
   "template_hashes": {
    "triton::mm": "d4b9"
   }
  },
  "2": {
   "torch": "2.13.0",
   "triton": "3.6.0",
   "compute": "cuda 13.0",
   "driver": "580.95",
   "python": "3.12.3",
   "template_hashes": {}
  }
 },
 "picks": [
  {
   "problem": "addmm bf16 8x24x16 nt",
   "op": "addmm",
   "inputs": [
    {"dtype": "bfloat16", "size": [8, 24], "stride": [0, 1]},
    {"dtype": "bfloat16", "size": [8, 16], "stride": [16, 1]},
    {"dtype": "bfloat16", "size": [16, 24], "stride": [1, 16]}
   ],
   "scalars": {"alpha": 0.5},
   "environment": 2,
   "regime": null,
   "runtime_us": null,
   "pick": {"template": "aten::bias_addmm"},
   "ties": []
  },
  {
   "problem": "mm bf16 64x256x128 nn",
   "op": "mm",
   "inputs": [
    {"dtype": "bfloat16", "size": [64, 128], "stride": [128, 1]},
    {"dtype": "bfloat16", "size": [128, 256], "stride": [256, 1]}
   ],
   "environment": 1,
   "regime": "graph",
   "runtime_us": 12.346,
   "pick": {"template": "triton::mm", "BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 8, "num_stages": 3, "num_warps": 4, "ALLOW_TF32": false, "ACC_TYPE": "tl.float32"},
   "ties": [
    {"template": "aten::mm"}
   ]
  }
 ]
}
"""  # noqa: E501 - a config is one line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a picks file is to be."""
    return tmp_path / "picks.json"


def test_the_file_as_people_see_it(path: Path) -> None:
    """Environments once, of their templates those in use, a line an input and a kernel, and nothing that moves."""
    Picks.of(H200, PICKS[:2]).write(path)
    assert path.read_text() == FILE


def test_what_is_written_is_read(path: Path) -> None:
    """Every entry with its environment and the hashes of its own templates; a second writing has the same bytes."""
    for allow in (False, True):
        made = Picks.of(H200, PICKS, allow_changed_template=allow)
        made.write(path, force=True)
        found = read_picks(path)
        assert (found.device, found.allow_changed_template, len(found.sha256)) == (H200, allow, 64)
        assert list(found.picks) == sorted(made.picks, key=list(found.picks).index)
        for key, pick in made.picks.items():
            again = found.picks[key]
            assert (again.problem, again.configs, again.regime) == (pick.problem, pick.configs, pick.regime)
            assert again.environment.key == pick.environment.key
            assert again.template_hashes == pick.template_hashes
        assert found.to_json() == path.read_text()


@given(problem=problems(), seed=st.integers())
def test_any_problem_in_any_order(problem: Problem, seed: int) -> None:
    """The order in which picks come is not seen in the file, and every problem that a record holds goes in and out."""
    shown = Problem.create(problem.op, problem.inputs, dict(problem.scalars))
    picks = [*PICKS, Pick(shown, (VENDOR,), HASHED, 0.123)]
    expected = Picks.of(H200, picks).to_json()
    random.Random(seed).shuffle(picks)  # noqa: S311 - any order will do
    assert Picks.of(H200, picks).to_json() == expected
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(expected)
        file.flush()
        assert read_picks(Path(file.name)).picks.keys() == {pick.problem.key for pick in picks}


def test_picks_of_one_environment_whose_templates_differ(path: Path) -> None:
    """A template that was patched, or whose hash nobody recorded, does not get the other's."""
    patched, unknown = (replace(HASHED, template_hashes=hashes) for hashes in ({"triton::mm": "ffff"}, {}))
    picks = [
        Pick(matmul(m, 8, 8), (A,), environment)
        for m, environment in ((8, HASHED), (16, patched), (24, unknown), (32, HASHED))
    ]
    Picks.of(H200, picks).write(path)
    found = {pick.problem.shape.m: pick.template_hashes["triton::mm"] for pick in read_picks(path).picks.values()}
    assert found == {8: "d4b9", 16: "ffff", 24: None, 32: "d4b9"}
    assert len(json.loads(path.read_text())["environments"]) == 3


def test_updating(path: Path) -> None:
    """New picks replace those of their problems, and the file is another."""
    Picks.of(H200, PICKS).write(path)
    found = read_picks(path)
    newer = replace(PICKS[0], configs=(C,), runtime_us=1.0)
    made = found.updated([newer])
    assert [len(made.picks), made.picks[newer.problem.key].configs, made.sha256] == [3, (C,), ""]


def test_a_file_that_is_there(path: Path) -> None:
    """It is replaced only if that is asked for; a folder never."""
    path.write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        Picks.of(H200, PICKS).write(path)
    assert path.read_text() == "mine"
    Picks.of(H200, PICKS).write(path, force=True)
    assert len(read_picks(path).picks) == 3


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    """Return the file with something in it changed."""
    plain: dict[str, Any] = json.loads(FILE)
    change(plain)
    return json.dumps(plain)


SECOND = "entry 2 (mm bf16 64x256x128 nn): "
BAD = {
    "empty": ("", ", line 1: not whole JSON (Expecting value); write it again with `diode lock`"),
    "torn": (FILE[:900], ": not whole JSON ("),
    "bytes": (b"\xff\xfe\x00", ": not a picks file; write it again"),
    "deep": ("[" * 100_000, ": not a picks file; write it again"),
    "other": (
        '{"version": 1}',
        ': not a picks file: it does not begin with "format": "torch-diode picks"; mend it, or ',
    ),
    "list": ("[]", ": not a picks file: it does not begin"),
    "version": (
        edited(lambda f: f.update(version=2)),
        ": picks of version 2, where 1 is expected; mend it, or write it",
    ),
    "truth": (edited(lambda f: f.update(version=True)), ": picks of version True, where 1 is expected"),
    "missing": (edited(lambda f: f.pop("device")), ": the file has no device;"),
    "unknown": (edited(lambda f: f.update(divice=1)), ": the file has 'divice', which is an unknown field"),
    "device": (
        edited(lambda f: f["device"].update(multiprocessors="132")),
        ": device.multiprocessors must be a whole n",
    ),
    "device's": (edited(lambda f: f["device"].pop("arch")), ": device has no arch;"),
    "allow": (edited(lambda f: f.update(allow_changed_template=1)), ": allow_changed_template must be true or false"),
    "environment": (
        edited(lambda f: f["environments"].update({"1": []})),
        ": environment 1 must be an object, not a list",
    ),
    "hash": (
        edited(lambda f: f["environments"]["1"]["template_hashes"].update({"triton::mm": 3})),
        ": environment 1: the hash of triton::mm must be text",
    ),
    "picks": (edited(lambda f: f.update(picks={})), ": picks must be a list, not an object"),
    "entry": (edited(lambda f: f["picks"].insert(1, 3)), ": entry 2: it must be an object, not a number"),
    "no pick": (edited(lambda f: f["picks"][1].pop("pick")), f": {SECOND}it has no pick;"),
    "field": (edited(lambda f: f["picks"][1].update(tie=[])), f": {SECOND}it has 'tie', which is an unknown field"),
    "op": (edited(lambda f: f["picks"][1].update(op="mn")), f": {SECOND}unknown op 'mn'; known ops: "),
    "size": (
        edited(lambda f: f["picks"][1]["inputs"][0].update(size=[32, 128])),
        f": {SECOND}its inputs make it mm bf16 32x256x128 nn;",
    ),
    "product": (
        edited(lambda f: f["picks"][1]["inputs"][0].update(size=[64, 129])),
        f": {SECOND}mm: [64, 129] x [128, 256] is not a matrix product",
    ),
    "dtype": (
        edited(lambda f: f["picks"][1]["inputs"][0].update(dtype="bf16")),
        f": {SECOND}inputs[0].dtype: unknown dtype 'bf16'",
    ),
    "raw bias": (
        edited(lambda f: f["picks"][0]["inputs"][0].update(size=[24], stride=[1])),
        "addmm: the inputs differ from the hook's view; broadcast a bias to the output",
    ),
    "scalar": (edited(lambda f: f["picks"][0]["scalars"].update(alpha=[])), "scalars.alpha must be a finite number"),
    "which": (
        edited(lambda f: f["picks"][1].update(environment=7)),
        f": {SECOND}there is no environment 7; the file has 1, 2;",
    ),
    "time": (edited(lambda f: f["picks"][1].update(runtime_us=-1)), f": {SECOND}runtime_us must be a finite, positive"),
    "template": (
        edited(lambda f: f["picks"][1]["pick"].update(template="tritom")),
        f": {SECOND}pick: unknown template",
    ),
    "no template": (edited(lambda f: f["picks"][1]["ties"].append({})), f": {SECOND}tie 2 has no template"),
    "block": (
        edited(lambda f: f["picks"][1]["pick"].update(BLOCK_M="32")),
        f": {SECOND}pick: BLOCK_M must be a whole number, not '32'",
    ),
    "twice": (
        edited(lambda f: f["picks"].append(f["picks"][1])),
        ": entry 3 (mm bf16 64x256x128 nn): the same problem as entry 2; keep one of them",
    ),
    "tie twice": (
        edited(lambda f: f["picks"][1]["ties"].append({"template": "aten::mm"})),
        f": {SECOND}pick and ties name a kernel twice; keep it once",
    ),
    "name twice": (FILE.replace('"regime": null,', '"regime": null, "regime": "x",'), ": an object has 'regime' twice"),
    "NaN": (FILE.replace("12.346", "NaN"), ": NaN is no number for a pick"),
    "digits": (FILE.replace("12.346", "1" * 5000), ": not a picks file; write it again"),
    "half a character": (
        edited(lambda f: f["picks"][1].update(regime="\ud800")),
        ": picks[1].regime must be text of whole Unicode characters",
    ),
    "long name": (edited(lambda f: f["picks"][1].update(problem="m" * 5000)), ": entry 2 ('mmm"),
    "long op": (edited(lambda f: f["picks"][1].update(op="m" * 5000)), f": {SECOND}unknown op 'mmm"),
    "long size": (
        edited(lambda f: f["picks"][1]["inputs"][0].update(size=[1] * 5000)),
        f": {SECOND}",
    ),
    "terminal": (
        edited(lambda f: f["picks"][1].update(problem="\x1b[2J")),
        r": entry 2 ('\x1b[2J'): its inputs make it mm bf16 64x256x128 nn",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, path: Path) -> None:
    """One line says what, where and how to mend it."""
    content, expected = BAD[case]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PicksError) as refused:
        read_picks(path)
    said = str(refused.value)
    assert said.startswith(str(path))
    assert expected in said
    assert "write it again with `diode lock`" in said
    assert "\n" not in said
    assert len(said) < 400 + len(str(path))


def test_a_file_that_is_not_there(path: Path) -> None:
    """Or a folder."""
    with pytest.raises(PicksError, match=r"cannot read the picks \(No such file or directory\); write it"):
        read_picks(path)
    path.mkdir()
    with pytest.raises(PicksError, match=r"cannot read the picks \(it is not a regular file\)"):
        read_picks(path)


def test_an_unknown_environment(path: Path) -> None:
    """What is not known of it is left out."""
    Picks.of(H200, [Pick(matmul(8, 8, 8), (VENDOR,), Environment())]).write(path)
    (pick,) = read_picks(path).picks.values()
    assert pick.environment == Environment()
