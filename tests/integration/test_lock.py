"""``torch_diode.lock``: what a run chose, in a file that makes the next one choose the same."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import torch
from hooked import OPS, compile_op, each_op, each_path, hooked, watching
from picks_of import H200, OLD, VENDOR, here, problem_of, tile, write
from torch._inductor import config as inductor_config
from torch._inductor import select_algorithm
from torch._inductor.exc import InductorError
from torch._inductor.utils import fresh_cache

from diode_collectors.inductor.device import detect_hardware
from diode_integration.choices import DiodeInductorChoices
from diode_integration.decide.decision import DecidedBy
from diode_integration.inductor import entry
from diode_integration.install import install
from diode_integration.picks.lock import _write, lock
from diode_store.errors import ExportError, PicksError
from diode_store.exchange.picks import Pick, Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.records import Environment
from inductor_harness import compile_and_run, quiet_torch, triton_choices_on_cpu
from samples import matmul
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CPU = detect_hardware("cpu")
assert CPU is not None


def picks_in(path: Path) -> dict[str, Pick]:
    """Return what a file picks, op → pick."""
    return {pick.problem.op: pick for pick in read_picks(path).picks.values()}


def on_cpu(model: TileModel | None = None, **options: Any) -> DiodeInductorChoices:
    """Return a handler for the CPU that compiles, of a model that does not know it."""
    return DiodeInductorChoices(model=model or TileModel(), **options)


def lock_op(path: Path, op: str, handler: DiodeInductorChoices) -> None:
    """Compile an op with ``handler`` and lock what was chosen; the vendor's kernel runs in its place."""
    function, shapes = OPS[op]
    with watching(run_vendor=True), lock(path), install(handler):
        compile_and_run(function, *(torch.randn(shape) for shape in shapes))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of locking."""
    return [record.getMessage() for record in caplog.records if record.name == "diode_integration"]


@contextmanager
def cpp_kernels() -> Iterator[None]:
    """Compile with the CPU's own backends, from empty caches."""
    settings = {"max_autotune_gemm_backends": "CPP,ATEN", "fx_graph_cache": False, "autotune_local_cache": False}
    with quiet_torch(), fresh_cache(), inductor_config.patch(settings):
        yield


@pytest.mark.quick(2)
@each_op
@each_path
def test_what_stock_inductor_chose(op: str, deferred: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a parameter of pytest's
    """The fastest that it timed, with its time and this environment."""
    path = tmp_path / "p.json"
    with lock(path):
        compile_op(op, None, deferred=deferred)
    pick = picks_in(path)[op]
    assert pick.problem.key == problem_of(op).key
    assert (pick.environment.torch, pick.runtime_us) == (torch.__version__, 500.0)
    assert {config.template for config in pick.configs} <= {f"aten::{op}", f"aten::bias_{op}"}
    assert read_picks(path).device.key == CPU.key


def test_what_is_within_noise_of_it(tmp_path: Path) -> None:
    """Of kernels that Inductor timed 1% apart all are named, the fastest first."""

    def time_ms(choice: Any) -> float:
        if not isinstance(choice, select_algorithm.TritonTemplateCaller):
            return 2.0
        sizes = choice.info_dict()["tile_shape"]
        return {"(64, 32, 64)": 1.0, "(64, 64, 64)": 1.01}.get(sizes, 1.5)

    path = tmp_path / "p.json"
    inputs = [torch.randn(shape) for shape in OPS["mm"][1]]
    # What Inductor takes is a Triton kernel, which this CPU cannot run.
    with lock(path), triton_choices_on_cpu(time_ms=time_ms), pytest.raises(InductorError):
        compile_and_run(torch.mm, *inputs)
    pick = picks_in(path)["mm"]
    assert pick.runtime_us == 1000.0
    assert {(each.block_m, each.block_n, each.block_k) for each in pick.configs} == {(64, 64, 32), (64, 64, 64)}
    assert pick.configs[0].block_k == 32


@pytest.mark.quick(1)
@each_op
def test_the_same_choices_again(op: str, tmp_path: Path) -> None:
    """With the file as picks the run keeps alone what stock Inductor had to time."""
    path = tmp_path / "p.json"
    with lock(path):
        assert len(compile_op(op, None).timed) > 10
    handler = on_cpu(picks=path)
    watch = compile_op(op, handler)
    ((left,),) = watch.left
    assert (f"aten::{left}", watch.timed) == (picks_in(path)[op].configs[0].template, [])
    assert [decision.decided_by for decision in handler.decisions()] == [DecidedBy.PICKS]


@pytest.mark.long
def test_real_cpp_kernels(tmp_path: Path) -> None:
    """On this CPU, timed and run for real: what was chosen is taken again without a benchmark, C++ or not."""
    path = tmp_path / "p.json"
    a, b = torch.randn(4, 64, 96), torch.randn(4, 96, 32)
    with cpp_kernels():
        with lock(path):
            compile_and_run(torch.bmm, a, b)
        pick = picks_in(path)["bmm"]
        assert pick.runtime_us is not None
        templates = {config.template for config in pick.configs}
        for wanted in sorted(templates | {"aten::bmm", "cpp::CppMicroGemmFP32Vec"}):
            configs = (replace(pick.configs[0], template=wanted),)
            Picks.of(CPU, [replace(pick, configs=configs)]).write(path, force=True)
            handler = on_cpu(picks=path)
            seen: list[list[Any]] = []
            with install(handler), entry.listening(lambda _choices, left, seen=seen: seen.append(left)):
                result = compile_and_run(torch.bmm, a, b)
            torch.testing.assert_close(result, torch.bmm(a, b), rtol=1e-4, atol=1e-3)
            if handler.get_stats()["picked_from_file"]:
                assert [len(left) for left in seen] == [1]
                assert handler.decisions()[0].chosen[0].config.template == wanted
            else:
                assert wanted not in templates
    assert handler.get_stats()["total_calls"] >= 1


def test_what_the_hook_kept_alone(tmp_path: Path) -> None:
    """A template or the vendor's kernel that nobody timed is locked as such, whenever the hook was installed."""
    path = tmp_path / "p.json"
    lock_op(path, "mm", hooked(TileModel(vendor_us=1000.0), mode="zero"))
    with lock(path):
        compile_op("bmm", hooked(mode="zero"))
    found = picks_in(path)
    assert found["bmm"].configs == (VENDOR["bmm"],)
    assert [pick.runtime_us for pick in found.values()] == [None, None]
    (template,) = found["mm"].configs
    assert (template.block_m, template.block_n, template.block_k) == (64, 64, 32)
    assert found["mm"].template_hashes == {"triton::mm": here().template_hashes["triton::mm"]}


def test_picks_that_were_obeyed_are_kept_as_they_are(tmp_path: Path) -> None:
    """With what was measured, ties included; one whose template had changed is now of this torch, without a time."""
    source, path = tmp_path / "source.json", tmp_path / "p.json"
    write(source, {"mm": (tile(), VENDOR["mm"])})
    lock_op(path, "mm", hooked(picks=source))
    assert picks_in(path)["mm"] == picks_in(source)["mm"]
    write(source, {"mm": (tile(),)}, environment=OLD, allow_changed_template=True)
    lock_op(path, "mm", hooked(picks=source))
    again = picks_in(path)["mm"]
    assert (again.environment.torch, again.runtime_us) == (torch.__version__, None)
    assert compile_op("mm", on_cpu(picks=path), run_vendor=True).left == [["triton 32x32x16 s2 w4"]]


def test_a_file_is_added_to(tmp_path: Path) -> None:
    """Problems that are compiled again are replaced, others stay; with ``replace`` nothing stays; writing is stable."""
    path = write(tmp_path / "p.json", {"mm": (tile(),), "bmm": (tile("bmm"),)}, device=CPU)
    with lock(path) as recorder:
        compile_op("mm", None)
    assert [pick.problem.op for pick in recorder.picks] == ["mm"]
    assert {op: pick.configs[0].is_vendor for op, pick in picks_in(path).items()} == {"mm": True, "bmm": False}
    before = path.read_bytes()
    with lock(path):
        compile_op("mm", None)
    assert path.read_bytes() == before
    with lock(path, replace=True):
        compile_op("mm", None)
    assert list(picks_in(path)) == ["mm"]


def test_what_was_added_meanwhile_stays(tmp_path: Path) -> None:
    """Two runs may lock into one file."""
    path = tmp_path / "p.json"
    with lock(path):
        compile_op("mm", None)
        write(path, {"bmm": (tile("bmm"),)}, device=CPU)
    assert sorted(picks_in(path)) == ["bmm", "mm"]


def test_what_became_damaged_meanwhile_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is recorded is written all the same, beside what was there at the beginning."""
    path = write(tmp_path / "p.json", {"bmm": (tile("bmm"),)}, device=CPU)
    with lock(path):
        compile_op("mm", None)
        path.write_text("{")
    assert sorted(picks_in(path)) == ["bmm", "mm"]
    assert (tmp_path / "p.json.old").read_text() == "{"
    assert said(caplog)[0].endswith(f"the file was replaced during the block and is now {path}.old")


def test_runs_that_end_together_keep_all_they_recorded(tmp_path: Path) -> None:
    """Each adds to what the others wrote, and none takes another's temporary file for its own."""
    path = tmp_path / "p.json"
    picks = [Pick(matmul(8, 8, 8 * size), (VENDOR["mm"],), Environment()) for size in range(1, 25)]
    starts = threading.Barrier(len(picks))

    def end(pick: Pick) -> None:
        starts.wait()
        _write(path, Mock(picks=[pick]), Picks.of(CPU, []), 0, is_new=False)

    threads = [threading.Thread(target=end, args=(pick,)) for pick in picks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_picks(path).picks) == {pick.problem.key for pick in picks}
    assert list(tmp_path.iterdir()) == [path]


def fail_after(work: Callable[[], object]) -> None:
    """Do something, and then have a bug."""
    work()
    raise ZeroDivisionError


def test_a_block_that_raises_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What was compiled before is written, and the error goes on, whatever becomes of the file."""
    path = tmp_path / "p.json"
    with pytest.raises(ZeroDivisionError), lock(path):
        fail_after(lambda: compile_op("mm", None))
    assert list(picks_in(path)) == ["mm"]
    with pytest.raises(ZeroDivisionError), lock(path):
        fail_after(lambda: (compile_op("mm", None), path.unlink(), path.mkdir()))
    assert said(caplog) == [f"nothing was locked: ExportError: {path} is a folder; name a file in it"]


def test_nothing_compiled_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said; the same for what is compiled without max-autotune."""
    path = tmp_path / "p.json"
    with lock(path), quiet_torch(), fresh_cache():
        torch._dynamo.reset()
        torch.compile(torch.mm)(torch.randn(8, 8), torch.randn(8, 8))
    assert said(caplog) == [f"{path}: not written: no matrix product was compiled with max-autotune"]
    assert not path.exists()


def test_cached_graphs_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing in them is chosen again, so nothing of them can be locked."""
    a, b = torch.randn(4, 16, 32), torch.randn(4, 32, 16)
    with quiet_torch(), fresh_cache(), inductor_config.patch(max_autotune_gemm_backends="ATEN", fx_graph_cache=True):
        compile_and_run(torch.bmm, a, b)
        with lock(tmp_path / "p.json"):
            compile_and_run(torch.bmm, a, b)
    assert "1 graph came from Inductor's cache, without their choices; compile with TORCH" in said(caplog)[0]


def test_a_single_choice_of_stock_inductor(tmp_path: Path) -> None:
    """Where it offers the vendor's kernel alone, that is locked too, from every thread."""
    path = tmp_path / "p.json"
    inputs = torch.randn(17), torch.randn(16, 32), torch.randn(32, 17)

    def work() -> None:
        settings = {"max_autotune_gemm_backends": "ATEN", "fx_graph_cache": False}
        with quiet_torch(), inductor_config.patch(settings), torch.no_grad():
            torch.compile(torch.addmm, mode="max-autotune")(*inputs)

    torch._dynamo.reset()
    with lock(path), fresh_cache():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    pick = picks_in(path)["addmm"]
    assert pick.configs[0].is_vendor
    assert pick.problem.shape.k == 32


def refused(path: Path, **options: Any) -> str:
    """Return why a file is not locked to, before anything was compiled."""
    with pytest.raises((PicksError, ExportError)) as error, lock(path, **options):
        pytest.fail("the block was entered")
    return str(error.value)


def test_files_that_cannot_be_added_to(tmp_path: Path) -> None:
    """Damaged, of another device, or in no folder: one line each, at once; and a device that is not there."""
    path = tmp_path / "p.json"
    path.write_text("{")
    assert refused(path).startswith(f"{path}, line 1: not whole JSON (")
    write(path, {"mm": (tile(),)})
    assert refused(path).startswith(f"{path}: picks of {H200.name} (sm_90, 132 multiprocessors), not of {CPU.name} (")
    assert refused(tmp_path / "no" / "p.json").endswith(f"there is no folder {tmp_path / 'no'}; make it first")
    assert "is no device" in refused(path, device="nonsense")
    assert refused(path, device="meta").startswith("torch-diode cannot identify the device meta")


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """Inductor's lists of callbacks are as before, and a hook that was installed meanwhile still works."""
    cache = select_algorithm.get_algorithm_selector_cache()
    before = list(cache.feedback_saver_fns), list(cache.preprocessing_fns)
    with lock(tmp_path / "p.json"):
        pass
    assert (cache.feedback_saver_fns, cache.preprocessing_fns) == before
    with lock(tmp_path / "p.json"):
        installation = install(hooked(mode="zero"))
    with installation:
        assert compile_op("mm", hooked(mode="zero")).left == [["mm"]]
    assert entry._listeners == []


def test_an_error_while_recording_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The compile goes on, and it is said once."""
    monkeypatch.setattr("diode_integration.picks.compiled.config_of_choice", lambda _choice: 1 / 0)
    with caplog.at_level(logging.WARNING), lock(tmp_path / "p.json"):
        compile_op("mm", None)
        compile_op("bmm", hooked(mode="zero"))
    assert said(caplog)[0] == "a choice was not locked: ZeroDivisionError: division by zero (logged once)"
    assert sum("was not locked" in line for line in said(caplog)) == 1
