"""What the hook decides reaches the spool, and from there the warehouse, without a compile waiting for it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hooked import OPS, compile_op, hooked, watching
from recording_fork import decision

from diode_collectors.feedback.collector import FeedbackCollector
from diode_collectors.inductor.device import detect_environment, detect_hardware
from diode_collectors.spool.spool import Spool
from diode_integration.decide.decision import DecidedBy, PredictedConfig
from diode_integration.inductor.entry import HOOK_VERSION
from diode_integration.install import install
from diode_integration.record.log import Stats
from diode_integration.record.recorder import Chooser, Recorder
from diode_integration.record.report import make_report
from diode_store.decisions import DecisionRecord
from diode_store.errors import SpoolError
from diode_store.kernels import KernelConfig
from diode_store.wire.segments import read_segment
from diode_trainer.covered import CoveredHardware
from inductor_harness import compile_and_run
from stand_ins import DOMAIN, TileModel, card_of

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_integration.choices import DiodeInductorChoices

PICKS_A_TEMPLATE = TileModel(vendor_us=1000.0)
CHOOSER = Chooser("zero/1/1.1", "zero", "a" * 64, 3)
COUNTS = ("decisions_recorded", "decisions_unrecorded", "decisions_dropped")
NOW = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return where the spool will be."""
    return tmp_path / "spool"


def recorded(spool: Path) -> list[DecisionRecord]:
    """Return the decisions of the sealed segments, in order."""
    frames = [frame for segment in Spool(spool).sealed() for frame in read_segment(segment)]
    records = [frame.record() for frame in frames]
    return [record for record in records if isinstance(record, DecisionRecord)]


def counts(source: Any) -> list[float]:
    """Return what became of the decisions."""
    stats = source.get_stats() if hasattr(source, "get_stats") else source.snapshot()
    return [stats[name] for name in COUNTS]


def test_from_a_compile_to_the_answer(spool: Path, request: pytest.FixtureRequest) -> None:
    """A compile with the hook and a collector, one ingest, one query: the pick took twice the vendor's time."""
    pytest.importorskip("sqlalchemy")  # not there where the hook is tested in several versions of torch
    database_path: Path = request.getfixturevalue("database_path")
    diode: RunCommand = request.getfixturevalue("diode")
    cpu = detect_hardware("cpu")
    assert cpu is not None
    covered = CoveredHardware(cpu.name, cpu.arch, cpu.multiprocessors)
    model = TileModel(vendor_us=20.5, card=card_of(replace(DOMAIN, hardware=(covered,))))
    handler = hooked(model, hardware=None, spool=spool, mode="top_k")
    with FeedbackCollector(spool):
        compile_op("mm", handler)
    assert counts(handler) == [1, 0, 0]

    database = ("--database", str(database_path))
    ended = diode("ingest", "--once", "--spool", str(spool), *database)
    said = "1 new, 0 already stored; 4 new timings, 1 new decision, 2 segments done\n"
    assert (ended.code, ended.out) == (0, said)
    columns = "op, m, template, block_m, picked_us, best_template, best_us, regret, is_tie, model_sha256, kept, policy"
    ended = diode("query", f"SELECT {columns} FROM regret", "--json", *database)  # noqa: S608 - our own columns
    row = json.loads(ended.out)
    row = row[0] if isinstance(row, list) else row
    [made] = handler.decisions()
    measured_us = 1000 * (1 + 1 / (64 * 64 * 32))  # as the harness times it
    assert list(row.values()) == [
        *("mm", 128, "triton::mm", 64, pytest.approx(measured_us), "aten::mm", 500.0),
        *(pytest.approx(measured_us / 500), False, "a" * 64, len(made.chosen), handler.policy.key),
    ]
    again = diode("ingest", "--once", "--spool", str(spool), *database)
    assert again.out.startswith("0 new, 0 already stored; nothing waits")


def test_the_record_says_what_was_decided(spool: Path) -> None:
    """Everything of the decision is in the record, with who decided, where and when."""
    before = datetime.now(UTC)
    handler = hooked(TileModel(), spool=spool, mode="zero")
    compile_op("addmm", handler)
    [made] = handler.decisions()
    [record] = recorded(spool)
    assert made.problem is not None
    assert (record.hardware, record.problem.key) == (made.device, made.problem.key)
    assert record.environment == detect_environment()
    assert [(kept.config, kept.predicted_us) for kept in record.kept] == [
        (chosen.config, chosen.predicted_us) for chosen in made.chosen
    ]
    assert (record.candidates, record.predicted_vendor_us) == (made.candidates, made.vendor_us)
    assert (record.decided_by, record.reason, record.observed) == ("model", made.reason, False)
    assert (record.policy, record.mode, record.model_sha256) == (handler.policy.key, "zero", "a" * 64)
    assert before <= record.decided_at <= datetime.now(UTC)
    assert record.seconds == made.seconds
    assert made.seconds > 0
    assert (record.failure, record.hook_version) == (None, HOOK_VERSION)


def test_abstentions_are_recorded(spool: Path) -> None:
    """What the model did not decide is a record too, without a kernel."""
    model = TileModel(card=card_of(replace(DOMAIN, dtypes=("bfloat16",))))
    compile_op("mm", hooked(model, spool=spool, unknown="vendor"))
    compile_op("mm", hooked(model, spool=spool, unknown="stock"))
    assert [(record.decided_by, record.kept, record.candidates) for record in recorded(spool)] == [
        ("vendor", (), 0),
        ("stock", (), 0),
    ]


@pytest.mark.long
def test_without_a_spool_nothing_is_imported_or_written(tmp_path: Path) -> None:
    """The spool's room is loaded by those who have one."""
    code = (
        "import sys; from diode_integration.choices import DiodeInductorChoices\n"
        "handler = DiodeInductorChoices(mode='zero'); assert handler._recorder is None\n"
        "rooms = ('diode_collectors.spool', 'diode_integration.record.recorder')\n"
        "print(*(name for name in sys.modules if name.startswith(rooms)))"
    )
    said = subprocess.check_output([sys.executable, "-W", "error", "-c", code], text=True, cwd=tmp_path)
    assert said.split() == []
    assert list(tmp_path.glob("**/*.seg")) == []


def test_the_variable_names_it(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DIODE_SPOOL stands in for the option; an empty option turns recording off."""
    monkeypatch.setenv("DIODE_SPOOL", str(spool))
    compile_op("mm", hooked(spool=""))
    assert not spool.exists()
    compile_op("mm", hooked())
    assert len(recorded(spool)) == 1


def test_a_spool_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is asked for is an error; one of the environment is logged, and the model decides all the same."""
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="cannot create the spool folder"):
        hooked(spool=tmp_path / "file" / "spool")
    monkeypatch.setenv("DIODE_SPOOL", str(tmp_path / "file" / "spool"))
    handler = hooked()
    compile_op("mm", handler)
    assert "DIODE_SPOOL: decisions are not recorded: " in caplog.text
    assert (len(handler.decisions()), counts(handler)) == (1, [0, 0, 0])


@pytest.mark.parametrize("deferred", [False, True])
def test_a_failed_graph_is_recorded(spool: Path, deferred: bool) -> None:  # noqa: FBT001 - a parameter of pytest's
    """What was picked for it says why it could not be compiled, in the record and in memory; the second try stands."""
    function, shapes = OPS["mm"]
    inputs = [torch.randn(shape) for shape in shapes]
    handler = hooked(PICKS_A_TEMPLATE, mode="zero", spool=spool)
    with watching(deferred=deferred), install(handler):
        compile_and_run(function, *inputs)
    failed, stands = recorded(spool)
    assert (failed.decided_by, failed.kept[0].config.template) == ("model", "triton::mm")
    assert failed.failure is not None
    assert (stands.decided_by, stands.failure, stands.kept) == ("vendor", None, ())
    first, second = handler.decisions()
    assert (first.failure, second.failure) == (failed.failure, None)
    assert first.describe().endswith(f"; the graph could not be compiled so: {failed.failure}")
    report = make_report(handler)
    assert [line.failure for line in report.ops] == [failed.failure, None]
    assert str(report).startswith("torch-diode: 1 op decided (1 by keeping the vendor's kernel); 1 graph compiled")
    assert f"could not be compiled: {failed.failure}" in str(report)


def test_a_compile_that_fails_anyway_is_recorded_as_failed(spool: Path) -> None:
    """If the vendor's kernels do not help either, what was picked was never deployed; it is recorded once."""
    handler = hooked(PICKS_A_TEMPLATE, mode="zero", spool=spool)
    with handler.graphs.compiling():
        handler.graphs.settled(decision(16))
        with pytest.raises(ZeroDivisionError), handler.graphs.without_model("why"):
            fails(handler)
        assert counts(handler) == [0, 0, 0]
    handler.flush()
    assert [(record.problem.shape.m, record.failure) for record in recorded(spool)] == [(16, "why")]


def fails(handler: DiodeInductorChoices) -> None:
    """Decide, and fail."""
    handler.graphs.settled(decision(32))
    raise ZeroDivisionError


def compile_in_part(handler: DiodeInductorChoices, error: BaseException) -> None:
    """Decide in a graph and in one amid it, and raise ``error`` in the outer one."""
    with handler.graphs.compiling():
        handler.graphs.settled(decision(16))
        with handler.graphs.compiling():
            handler.graphs.settled(decision(32))
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_a_graph_that_is_given_up_is_recorded_as_failed(spool: Path, error: type[BaseException]) -> None:
    """What was decided for a compile that was interrupted, or failed by itself, was never deployed."""
    handler = hooked(spool=spool)
    with pytest.raises(error):
        compile_in_part(handler, error("amid it"))
    handler.flush()
    found = [(record.problem.shape.m, record.failure) for record in recorded(spool)]
    assert found == [(32, None), (16, f"{error.__name__}: amid it")]


def test_a_graph_amid_another(spool: Path) -> None:
    """Each graph's decisions are recorded when it is compiled, and a failure is its own."""
    handler = hooked(spool=spool)
    template = replace(decision(16), chosen=(PredictedConfig(KernelConfig("triton::mm", block_m=64), 1.0),))
    with handler.graphs.compiling():
        handler.graphs.settled(template)
        with handler.graphs.compiling():
            assert not handler.graphs.has_template
            handler.graphs.settled(decision(32))
        assert handler.graphs.has_template
        with handler.graphs.without_model("why"):
            handler.graphs.settled(decision(48))
    handler.flush()
    found = [(record.problem.shape.m, record.failure) for record in recorded(spool)]
    assert found == [(32, None), (16, "why"), (48, None)]


def test_what_no_record_can_hold_is_counted(spool: Path) -> None:
    """A decision on no known product, or on an unknown device, is counted and not recorded."""
    stats = Stats()
    recorder = Recorder(spool, CHOOSER, stats)
    recorder.take(replace(decision(16), problem=None), NOW)
    recorder.take(replace(decision(16), device=None), NOW)
    recorder.close()
    assert counts(stats) == [0, 2, 0]
    assert not list(spool.iterdir())


def test_odd_values_are_made_to_fit(spool: Path) -> None:
    """Predictions that are no times are left out, words are shortened, and what no database takes is replaced."""
    recorder = Recorder(spool, CHOOSER, Stats())
    picked = (PredictedConfig(KernelConfig("aten::mm"), float("inf")),)
    odd = replace(decision(16), chosen=picked, vendor_us=float("nan"), reason="a\0b" + "x" * 10_000, failure="\0\ud800")
    recorder.take(replace(odd, decided_by=DecidedBy.STOCK), NOW)
    recorder.close()
    [record] = recorded(spool)
    assert (record.kept[0].predicted_us, record.predicted_vendor_us, record.failure) == (None, None, "\ufffd\ufffd")
    assert (record.reason[:3], len(record.reason)) == ("a\ufffdb", 2000)


def test_a_full_queue_drops_and_counts(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A compile never waits: what does not fit into the queue is counted, logged once, and gone."""
    stats = Stats()
    recorder = Recorder(spool, CHOOSER, stats, queue_records=1)
    held_up, go_on = threading.Event(), threading.Event()
    append = recorder._spool.append

    def slow(record: Any) -> None:
        held_up.set()
        go_on.wait()
        append(record)

    recorder._spool.append = slow  # type: ignore[method-assign]
    recorder.take(decision(16), NOW)
    held_up.wait()
    for m in (32, 48, 64):
        recorder.take(decision(m), NOW)
    assert counts(stats) == [4, 0, 2]
    go_on.set()
    recorder.close()
    assert [record.problem.shape.m for record in recorded(spool)] == [16, 32]
    assert caplog.text.count("decisions are dropped: more than 1 records wait to be written (logged once)") == 1


def test_a_full_spool_drops_and_counts(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The spool's limit holds for decisions."""
    stats = Stats()
    recorder = Recorder(spool, CHOOSER, stats, max_bytes=100)
    recorder.take(decision(16), NOW)
    recorder.close()
    assert counts(stats) == [1, 0, 1]
    assert "its limit is 100" in caplog.text


def test_a_spool_that_went_away_drops_and_counts(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that is gone costs the decisions, not the compile."""
    handler = hooked(spool=spool)
    spool.rmdir()
    spool.touch()
    with caplog.at_level(logging.WARNING, "diode_integration"):
        compile_op("mm", handler)
    assert counts(handler) == [1, 0, 1]
    assert "could not write the spool: " in caplog.text


def test_uninstalling_hands_over_and_installing_goes_on(spool: Path) -> None:
    """Each installation of one handler ends with its decisions in sealed segments."""
    handler = hooked(spool=spool)
    for expected in (1, 2):
        compile_op("mm", handler)
        assert len(recorded(spool)) == expected
        assert not list(spool.glob("*.open"))
    assert "diode-decisions" not in {thread.name for thread in threading.enumerate()}


def test_many_threads_record(spool: Path) -> None:
    """Every decision of every thread is there once."""
    stats = Stats()
    recorder = Recorder(spool, CHOOSER, stats)
    sizes = range(16, 16 + 200)
    threads = [
        threading.Thread(target=lambda part: [recorder.take(decision(m), NOW) for m in part], args=(sizes[i::4],))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    assert sorted(record.problem.shape.m for record in recorded(spool)) == list(sizes)
    assert counts(stats) == [200, 0, 0]


@pytest.mark.long
def test_a_forked_child_and_the_exit(spool: Path) -> None:
    """A child records on its own, whatever its parent's threads hold, and what waits is handed over at exit."""
    script = Path(__file__).parent / "recording_fork.py"
    said = subprocess.check_output([sys.executable, "-W", "error", script, spool], text=True, timeout=120)
    assert said == "child ended with 0\n"
    assert sorted(record.problem.shape.m for record in recorded(spool)) == [16, 32, 48]
    assert not list(spool.glob("*.open"))
