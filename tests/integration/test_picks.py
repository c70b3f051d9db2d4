"""The hook with a picks file, in real compiles: measured beats predicted."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest import mock

import pytest
import torch
from hooked import OPS, benchmarks, compile_op, each_op, each_path, hooked, watching
from picks_of import OLD, VENDOR, here, tile, write
from torch._inductor import select_algorithm

from diode_collectors.inductor.adapter import POLICY_ANNOTATION
from diode_integration.decide.decision import DecidedBy
from diode_integration.install import install
from diode_integration.picks.search import is_unchanged
from diode_integration.record import report as hook_report
from diode_store.candidates.names import kernel_config
from diode_store.devices.known import known_device
from diode_store.errors import PicksError
from diode_store.exchange.picks import Pick
from diode_store.exchange.picks_reading import read_picks
from diode_store.records import Environment
from inductor_harness import compile_and_run
from samples import matmul
from stand_ins import BrokenModel, TileModel

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import KernelConfig

PICKED = "triton 32x32x16 s2 w4"
UNLISTED = tile(block_m=48)
"""No kernel of Inductor's has such a block."""


def is_vendor(name: str, op: str) -> bool:
    """Return whether ``name`` is a vendor kernel of ``op``; torch 2.11 offers two for an addmm."""
    return name in {op, f"bias_{op}"}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the hook logged of a picks file."""
    return [line for line in caplog.messages if "pick" in line]


@each_op
@each_path
def test_the_picked_template_is_kept_alone(op: str, deferred: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of pytest's
    """However Inductor asks, in one call or in three, and nothing is benchmarked."""
    path = write(tmp_path / "p.json", {op: (tile(op),)})
    handler = hooked(TileModel(vendor_us=1.0), picks=path)
    watch = compile_op(op, handler, deferred=deferred, run_vendor=True)
    assert watch.left == [[PICKED]]
    assert (watch.timed, benchmarks()) == ([], 0)
    (decision,) = handler.decisions()
    assert (decision.decided_by, decision.chosen[0].predicted_us) == (DecidedBy.PICKS, 12.25)
    stats = handler.get_stats()
    assert (stats["picked_from_file"], stats["model_selections"], stats["kept_alone"]) == (1, 0, 1)
    assert watch.kept[0][0].annotations[POLICY_ANNOTATION] == f"hook:{read_picks(path).sha256}"


@each_op
@each_path
def test_the_picked_vendors_kernel_is_kept_alone(op: str, deferred: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of pytest's
    """Although the model would take a template; none is generated beside it."""
    path = write(tmp_path / "p.json", {op: (VENDOR[op],)})
    handler = hooked(TileModel(vendor_us=1000.0), picks=path)
    watch = compile_op(op, handler, deferred=deferred)
    assert (watch.offered, watch.left, watch.timed) == ([[op]], [[op]], [])
    (decision,) = handler.decisions()
    assert decision.chosen[0].config == VENDOR[op]
    assert not decision.abstained


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("first_is_vendor", [True, False])
def test_the_first_of_a_tie_that_is_listed(op: str, first_is_vendor: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of pytest's
    """In the order of the file, whichever call of the op lists which; another is not generated for nothing."""
    tie = (VENDOR[op], tile(op)) if first_is_vendor else (tile(op), VENDOR[op])
    handler = hooked(picks=write(tmp_path / "p.json", {op: (UNLISTED, *tie)}))
    watch = compile_op(op, handler, run_vendor=True)
    assert watch.left == [[op if first_is_vendor else PICKED]]
    assert PICKED not in watch.offered[0] or not first_is_vendor
    (decision,) = handler.decisions()
    assert decision.describe().endswith(
        "(within noise of triton::mm 48x32x16 s2 w4, which p.json picks and which is not available)"
    )


@pytest.mark.quick(1)
@each_op
def test_a_kernel_that_is_not_listed_is_left_to_the_model(
    op: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once by name and counted, and everything goes on as without the file."""
    path = write(tmp_path / "p.json", {op: (replace(UNLISTED, template=tile(op).template),)})
    handler = hooked(TileModel(vendor_us=20.5), picks=path)
    left = [compile_op(op, handler).left for _ in range(2)]
    assert left == [compile_op(op, hooked(TileModel(vendor_us=20.5))).left] * 2
    assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.MODEL] * 2
    assert handler.get_stats()["picks_missed"] == 2
    (line,) = said(caplog)
    assert line.startswith(f"{path}: {tile(op).template} 48x32x16 s2 w4, picked for {op} fp32 ")
    assert line.endswith("is not available: this torch does not list it; the model decides (logged once)")


def test_a_template_whose_source_changed_is_ignored_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for all its picks, with both hashes and what to do; the vendor's kernels have no source to change."""
    path = write(tmp_path / "p.json", {"mm": (tile(),), "addmm": (tile(), VENDOR["addmm"])}, environment=OLD)
    handler = hooked(picks=path, mode="zero")
    assert compile_op("mm", handler).left == [["mm"]]
    assert compile_op("addmm", handler).left == [["addmm"]]
    assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.MODEL, DecidedBy.PICKS]
    now = here().template_hashes["triton::mm"][:8]
    (line,) = said(caplog)
    assert line == (
        f"{path}: picks of triton::mm are ignored: its source has changed since torch 2.9.0 "
        f"(00000000 there, {now} here); measure in this torch, or allow it with `diode lock --allow-changed-template` "
        "(logged once)"
    )


@pytest.mark.parametrize("environment", [OLD, replace(OLD, template_hashes={})], ids=["changed", "unknown"])
def test_a_changed_template_may_be_allowed(environment: object, tmp_path: Path) -> None:
    """The file says so."""
    path = write(tmp_path / "p.json", {"mm": (tile(),)}, environment=environment, allow_changed_template=True)
    assert compile_op("mm", hooked(picks=path), run_vendor=True).left == [[PICKED]]


@pytest.mark.parametrize(("version", "taken"), [(None, True), ("2.9.0", False)])
def test_a_template_whose_source_nobody_recorded(version: str | None, taken: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of pytest's
    """It is taken by the very torch that it was measured in."""
    environment = replace(here(), template_hashes={}, **({} if version is None else {"torch": version}))
    path = write(tmp_path / "p.json", {"mm": (tile(),)}, environment=environment)
    watch = compile_op("mm", hooked(mode="zero", picks=path), run_vendor=True)
    assert watch.left == [[PICKED if taken else "mm"]]


def test_parameters_that_a_source_did_not_tell_may_have_any_value(tmp_path: Path) -> None:
    """An imported file often names the tile alone."""
    bare = kernel_config("triton::mm", {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 2, "num_warps": 4})
    assert compile_op("mm", hooked(picks=write(tmp_path / "p.json", {"mm": (bare,)})), run_vendor=True).left == [
        [PICKED]
    ]


def test_other_problems_are_as_the_model_says(tmp_path: Path) -> None:
    """A problem that the file does not name is decided as without it."""
    handler = hooked(mode="zero", picks=write(tmp_path / "p.json", {"mm": (tile(),)}))
    assert compile_op("bmm", handler).left == compile_op("bmm", hooked(mode="zero")).left
    stats = handler.get_stats()
    assert (stats["picked_from_file"], stats["picks_missed"]) == (0, 0)


@pytest.mark.parametrize("config", [VENDOR["mm"], tile()], ids=["vendor", "template"])
def test_no_model_is_needed(config: KernelConfig, tmp_path: Path, models_folder: Path) -> None:
    """Without one, with one that fails, and where it abstains."""
    path = write(tmp_path / "p.json", {"mm": (config,)})
    expected = [["mm" if config.is_vendor else PICKED]]
    without = hooked(picks=path)
    without.models = None
    for handler in (without, hooked(BrokenModel(), picks=path), hooked(picks=path, unknown="vendor")):
        assert compile_op("mm", handler, run_vendor=True).left == expected
        assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.PICKS]


@each_op
def test_a_pick_whose_code_cannot_be_generated(op: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The vendor's kernel stands in, and that is said."""
    handler = hooked(TileModel(vendor_us=1.0), picks=write(tmp_path / "p.json", {op: (tile(op),)}))
    with mock.patch.object(select_algorithm.TritonTemplate, "choice_or_none", return_value=None):
        ((left,),) = compile_op(op, handler).left
    assert is_vendor(left, op)
    lines = [record.getMessage() for record in caplog.records if "is not available" in record.getMessage()]
    assert len(lines) == 1
    if op != "addmm":  # its vendor's kernels are another call's, which knows of no template
        assert lines[0].endswith("Inductor cannot generate its code; the vendor's kernel is kept (logged once)")


@each_op
def test_a_graph_that_a_pick_breaks_is_compiled_again_without_it(
    op: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Triton kernel cannot be compiled here: the graph gets the vendor's, also where there is no model."""
    function, shapes = OPS[op]
    inputs = [torch.randn(shape) for shape in shapes]
    handler = hooked(picks=write(tmp_path / "p.json", {op: (tile(op),)}))
    handler.models = None
    with watching() as watch, install(handler):
        result = compile_and_run(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), rtol=1e-4, atol=1e-3)
    first, (again,) = watch.left
    assert (first, watch.timed) == ([PICKED], [])
    assert is_vendor(again, op)
    assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.PICKS, DecidedBy.VENDOR]
    assert any(line.startswith("a kernel that was picked cannot be used") for line in caplog.messages)


@pytest.mark.quick(1)
@each_op
@pytest.mark.parametrize("rank", [0, 1])
def test_observing_changes_nothing(op: str, rank: int, tmp_path: Path) -> None:
    """What would be taken is recorded, and stock Inductor chooses."""
    path = write(tmp_path / "p.json", {op: (tile(op), VENDOR[op]) if rank else (VENDOR[op], tile(op))})
    handler = hooked(picks=path, observe=True)
    watch = compile_op(op, handler)
    stock = compile_op(op, None)
    assert (sorted(watch.left[0]), sorted(watch.timed)) == (sorted(stock.left[0]), sorted(stock.timed))
    (decision,) = handler.decisions()
    assert (decision.decided_by, decision.observed) == (DecidedBy.PICKS, True)
    assert decision.chosen[0].config.template == (tile(op) if rank else VENDOR[op]).template


def test_two_ops_of_the_same_matrices(tmp_path: Path) -> None:
    """Each gets its pick, although a call names its op by its matrices alone."""
    path = write(tmp_path / "p.json", {"addmm": (tile("addmm"),)})
    handler = hooked(picks=path)
    shapes = OPS["addmm"][1]
    inputs = [torch.randn(shape) for shape in (shapes[0], *shapes)]
    with watching(run_vendor=True) as watch, install(handler):
        compile_and_run(lambda c, d, a, b: (torch.addmm(c, a, b), torch.addmm(d, a, b)), *inputs)
    assert watch.left == [[PICKED]] * 2


def test_what_it_says(tmp_path: Path) -> None:
    """A decision in a line, and the report."""
    path = write(tmp_path / "p.json", {"mm": (tile(), VENDOR["mm"])})
    handler = hooked(picks=path)
    compile_op("mm", handler, run_vendor=True)
    (decision,) = handler.decisions()
    why = f"picked in p.json, measured 12.2 us in torch {torch.__version__}"
    assert decision.describe() == (
        f"mm float32 B=1 M=128 N=256 K=512 nn on NVIDIA H200: kept 1 of 2: triton::mm 32x32x16 s2 w4 12.2 us ({why})"
    )
    report = hook_report.report_of(handler.decisions(), handler.get_stats(), {})
    assert (report.ops[0].decided_by, report.ops[0].predicted_us, report.ops[0].reason) == ("picks", 12.25, why)
    assert str(report).startswith("torch-diode: 1 op decided (1 by the picks file)\n")
    untimed = hooked(picks=write(tmp_path / "p.json", {"mm": (VENDOR["mm"],)}, runtime_us=None, regime=None))
    compile_op("mm", untimed)
    assert untimed.decisions()[0].describe().endswith("kept 1 of 1: aten::mm (picked in p.json, not timed)")
    assert hook_report.report_of(untimed.decisions(), {}, {}).ops[0].predicted_us is None


def test_picks_are_part_of_the_cache_key(tmp_path: Path) -> None:
    """A compile under other picks, or none, is another one; the same file, moved, is the same; without, as it was."""
    one, moved = (write(tmp_path / name, {"mm": (tile(),)}) for name in ("p.json", "q.json"))
    two = write(tmp_path / "r.json", {"mm": (VENDOR["mm"],)})
    keys = [hooked().uuid(), *(hooked(picks=path).uuid() for path in (one, moved, two, read_picks(one)))]
    assert keys[1] == keys[2] == keys[4]
    assert len(set(keys)) == 3
    assert "picks" not in keys[0]


def test_picks_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``import torch_diode`` takes no options; DIODE_PICKS names the file."""
    monkeypatch.setenv("DIODE_PICKS", str(write(tmp_path / "p.json", {"mm": (tile(),)})))
    assert compile_op("mm", hooked(mode="zero"), run_vendor=True).left == [[PICKED]]


@pytest.mark.parametrize("content", [None, "", "[]", '{"format": "torch-diode picks"'], ids=str)
def test_picks_that_cannot_be_read(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for who asked for them; with fallback, or from the environment, it is logged and the model goes on."""
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(PicksError) as refused:
        hooked(picks=path, enable_fallback=False)
    assert str(refused.value).startswith(f"{path}")
    monkeypatch.setenv("DIODE_PICKS", str(path))
    handler = hooked(mode="zero")
    assert caplog.messages == [f"no picks file is used: DIODE_PICKS: {refused.value}"]
    assert compile_op("mm", handler).left == [["mm"]]


def test_picks_of_another_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are refused where the device is named, and else, when the first compile shows it, said once and not used."""
    a100 = known_device("a100-80gb")
    path = write(tmp_path / "p.json", {"mm": (tile(),)}, device=a100)
    expected = (
        f"{path}: picks of NVIDIA A100-SXM4-80GB (sm_80, 108 multiprocessors), not of NVIDIA H200 (sm_90, 132 mul"
    )
    with pytest.raises(PicksError) as refused:
        hooked(picks=path, enable_fallback=False)
    assert str(refused.value).startswith(expected)
    caplog.clear()
    handler = hooked(picks=path, hardware=None)
    for op in OPS:
        compile_op(op, handler)
    (line,) = said(caplog)
    assert line.startswith(f"{path}: picks of NVIDIA A100-SXM4-80GB (sm_80, 108 multiprocessors); none is used on ")
    assert handler.get_stats()["picked_from_file"] == 0


def test_a_home_that_nobody_has() -> None:
    """A path that cannot be made whole is one line too."""
    with pytest.raises(PicksError, match=r"^~nobody-has-this-name/p.json: there is no such user; write the path out"):
        hooked(picks="~nobody-has-this-name/p.json", enable_fallback=False)


def test_an_error_in_the_picks_is_survived(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever happens there, stock Inductor chooses."""
    handler = hooked(picks=write(tmp_path / "p.json", {"mm": (tile(),)}))
    with (
        caplog.at_level(logging.WARNING),
        mock.patch("diode_integration.picks.search.find", side_effect=ZeroDivisionError("bug")),
    ):
        watch = compile_op("mm", handler)
    assert len(watch.left[0]) > 10
    assert handler.get_stats()["fallback_error"] >= 1


def test_dynamic_shapes_are_picked_by_their_hints(tmp_path: Path) -> None:
    """A symbolic size counts as the size that it was first seen with, as for the model."""
    handler = hooked(picks=write(tmp_path / "p.json", {"mm": (VENDOR["mm"],)}))
    inputs = torch.randn(128, 512), torch.randn(512, 256)
    with watching() as watch, install(handler):
        compile_and_run(OPS["mm"][0], *inputs, dynamic=True)
    assert watch.left == [["mm"]]


def test_another_device_is_believed_of_what_cannot_be_listed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU, with the CPU's own backends, decisions are those that the device would make."""
    tma = kernel_config("triton::mm_persistent_tma", {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_stages": 3})
    ranks = {}
    biased = kernel_config("bias_addmm", {})
    cases = {
        ("mm", "template"): (tile(),),
        ("mm", "not listed there"): (UNLISTED, VENDOR["mm"]),
        ("mm", "switched off there"): (tma, VENDOR["mm"]),
        ("addmm", "template"): (tile(), VENDOR["addmm"]),
        ("addmm", "vendor's"): (biased, tile()),
        ("addmm", "not listed there"): (UNLISTED, tile()),
        ("bmm", "template"): (tile("bmm"), VENDOR["bmm"]),
    }
    for (op, case), configs in cases.items():
        path = write(
            tmp_path / "p.json",
            {op: configs},
            environment=replace(here(), torch="2.99.0") if case != "switched off there" else here(),
        )
        handler = hooked(picks=path, observe=True)
        compile_op(op, handler, cpu_backend="cpp", backends="ATEN")
        (decision,) = handler.decisions()
        ranks[op, case] = configs.index(decision.chosen[0].config)
    second = {("mm", "not listed there"), ("mm", "switched off there"), ("addmm", "not listed there")}
    assert ranks == {key: int(key in second) for key in cases}


@pytest.mark.parametrize(
    ("measured_in", "is_taken"),
    [("2.13.0+cu130", True), ("2.13.0+rocm7.1", True), ("2.13.0", True), ("2.13.0+gitabc", False), ("2.13.1", False)],
)
def test_a_template_whose_source_is_not_known(
    measured_in: str,
    is_taken: bool,  # noqa: FBT001 - a parameter of pytest's
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds in the same release of torch, for whichever platform that was built."""
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    pick = Pick(matmul(8, 8, 8), (tile(),), Environment(measured_in))
    assert is_unchanged(pick, "triton::mm", "1" * 64) is is_taken
