"""The feedback collector, in real compiles on this CPU."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from spool_reading import spooled
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache

from diode_collectors.feedback.collector import FeedbackCollector, FeedbackStats
from diode_collectors.feedback.listening import AutotuningListener
from diode_collectors.spool.spool import Spool
from diode_store.errors import SettingsError, SpoolError
from diode_store.records import Source
from inductor_harness import compile_and_run, triton_choices_on_cpu
from samples import measurement
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B = torch.zeros(64, 128), torch.zeros(128, 32)


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Return where the spool goes."""
    return tmp_path / "spool"


@pytest.fixture
def _stock_savers() -> Iterator[None]:
    """Leave Inductor's list of savers as it was."""
    cache = get_algorithm_selector_cache()
    before = list(cache.feedback_saver_fns)
    yield
    cache.feedback_saver_fns = before


def test_events_land_in_the_spool(spool: Path) -> None:
    """Each autotuned product is one measurement with its real choices, in microseconds."""
    with triton_choices_on_cpu(), FeedbackCollector(spool) as collector:
        compile_and_run(torch.mm, A, B)
        compile_and_run(torch.bmm, torch.zeros(4, 64, 32), torch.zeros(4, 32, 48))
    mm, bmm = spooled(spool)
    assert [(mm.problem.op, mm.problem.shape.m), (bmm.problem.op, bmm.problem.shape.b)] == [("mm", 64), ("bmm", 4)]
    assert (mm.source, mm.choice_policy, mm.is_replay) == (Source.FEEDBACK, "stock", False)
    assert [timing.runtime_us for timing in mm.timings if timing.config.template == "aten::mm"] == [500.0]
    triton = [timing for timing in mm.timings if timing.config.template == "triton::mm"]
    assert len(triton) > 5
    assert all(1000.0 < (timing.runtime_us or 0) < 1002.0 for timing in triton)
    timings = len(mm.timings) + len(bmm.timings)
    assert collector.stats == FeedbackStats(events=2, recorded=2, timings=timings)


def test_choices_made_in_the_scheduler_are_recorded(spool: Path) -> None:
    """On CUDA, Inductor benchmarks when it schedules; the event comes from there."""
    with triton_choices_on_cpu(deferred=True), FeedbackCollector(spool):
        compile_and_run(torch.mm, A, B)
    assert [(m.problem.op, m.timings[0].runtime_us) for m in spooled(spool)] == [("mm", 500.0)]


def test_dynamic_shapes_are_recorded_with_their_hints(spool: Path) -> None:
    """A symbolic size is the size of the call that compiled."""
    with triton_choices_on_cpu(), FeedbackCollector(spool):
        compile_and_run(torch.mm, A, B, dynamic=True)
    shapes = [found.problem.shape for found in spooled(spool)]
    assert [(shape.m, shape.n, shape.k) for shape in shapes] == [(64, 32, 128)]


def test_cached_timings_are_marked_as_replays(spool: Path) -> None:
    """Timings that come back from Inductor's cache are the old ones, bit for bit, and say so."""
    with triton_choices_on_cpu(autotune_local_cache=True), FeedbackCollector(spool) as collector:
        compile_and_run(torch.mm, A, B)
        compile_and_run(torch.mm, A, B)
    first, second = spooled(spool)
    assert [first.is_replay, second.is_replay] == [False, True]
    assert first.timings == second.timings
    assert collector.stats.replays == 1


GARBAGE = [
    (),
    (None, "mm", None, None),
    ({object(): 1.0}, "mm", [object()], []),
    ("no timings", "mm", [], []),
    ({}, "addmm", [], [], None, {}, "an argument of tomorrow"),
    ({}, ["unhashable"], [], []),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("arguments", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_is_survived(arguments: tuple[Any, ...], spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A saver told nonsense neither raises nor loses what comes after, and says so once."""
    with triton_choices_on_cpu(), FeedbackCollector(spool) as collector:
        collector._on_feedback(*arguments)
        collector._on_feedback(*arguments)
        compile_and_run(torch.mm, A, B)
    assert [found.problem.op for found in spooled(spool)] == ["mm"]
    stats = collector.stats
    assert (stats.events, stats.recorded, stats.failed + stats.unsupported) == (3, 1, 2)
    said = [message for message in caplog.messages if message.startswith("could not record an autotuning event")]
    assert len(said) == bool(stats.failed)


class Mute(str):
    """A name that cannot be looked up, shown or said."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Raise."""
        raise RuntimeError("no repr")

    __str__ = __repr__


class MuteError(Exception):
    """An error that cannot say what is wrong."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("no words")


@pytest.mark.usefixtures("_stock_savers")
def test_errors_that_cannot_be_shown_are_survived(caplog: pytest.LogCaptureFixture) -> None:
    """What torch or a hook hands over may raise when it is to show itself; the compile goes on and the log says so."""

    def refuse(_: Any) -> None:
        raise MuteError

    listener = AutotuningListener(refuse)
    add_feedback_saver(listener._saver)
    with triton_choices_on_cpu():
        compile_and_run(torch.mm, A, B)
    AutotuningListener()._on_feedback({}, Mute("mm"), [], [])
    assert listener.stats == FeedbackStats(events=1, failed=1)
    first, second = (said.getMessage() for said in caplog.records if said.name == "diode_collectors.feedback.listening")
    assert re.fullmatch(
        r"could not record an autotuning event of 'mm': <.*MuteError object at .*> \(logged once\)", first
    )
    assert re.match(r"could not record an autotuning event of <Mute instance at .*>: TypeError: unhashable", second)


def test_a_writer_survives_errors_that_cannot_be_shown(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The writer's thread goes on, and writes what comes after."""

    def refuse(_: Any) -> None:
        raise MuteError

    with FeedbackCollector(spool) as collector:
        append, collector._background.spool.append = collector._background.spool.append, refuse  # type: ignore[method-assign]
        collector.take(measurement())
        eventually(lambda: "MuteError object" in caplog.text)
        collector._background.spool.append = append  # type: ignore[method-assign]
        collector.take(measurement(1))
    assert collector.stats.dropped == 1
    assert [found.problem.shape.m for found in spooled(spool)] == [65]


def test_a_log_that_raises_is_survived(spool: Path) -> None:
    """Filters and handlers are the user's own, and run in the compiling thread."""

    def refuse(_: Any) -> bool:
        raise MuteError

    logger = logging.getLogger("diode_collectors.feedback.listening")
    logger.addFilter(refuse)
    try:
        with FeedbackCollector(spool) as collector:
            collector._on_feedback(None, "mm", None, None)
    finally:
        logger.removeFilter(refuse)
    assert collector.stats.failed == 1


def test_keyword_arguments_of_tomorrow_are_survived(spool: Path) -> None:
    """A newer torch may name what it passes."""
    with FeedbackCollector(spool) as collector:
        collector._on_feedback({}, "paged_attention", [], [], later=1)
    assert collector.stats == FeedbackStats(events=1, unsupported=1)


def test_other_ops_are_only_counted(spool: Path) -> None:
    """An op that this version does not know, without inputs, is no record and no reason to warn."""
    with FeedbackCollector(spool) as collector:
        collector._on_feedback({}, "paged_attention", [], [])
    assert collector.stats == FeedbackStats(events=1, unsupported=1)
    assert spooled(spool) == []


@pytest.mark.usefixtures("_stock_savers")
def test_only_its_own_saver_is_removed(spool: Path, tmp_path: Path) -> None:
    """Stopping leaves the savers of others, also another collector's, in their order."""

    def before(*_: Any) -> None: ...

    def after(*_: Any) -> None: ...

    cache = get_algorithm_selector_cache()
    cache.feedback_saver_fns = []
    add_feedback_saver(before)
    with FeedbackCollector(tmp_path / "other") as other:
        collector = FeedbackCollector(spool)
        collector.start()
        add_feedback_saver(after)
        running = cache.feedback_saver_fns
        collector.stop()
        assert cache.feedback_saver_fns == [before, other._saver, after]
        assert running is not cache.feedback_saver_fns
    collector.stop()
    assert cache.feedback_saver_fns == [before, after]


def test_stopping_what_never_started_is_harmless(spool: Path) -> None:
    """There is nothing to hand over."""
    FeedbackCollector(spool).stop()
    assert spooled(spool) == []


@pytest.mark.usefixtures("_stock_savers")
def test_a_full_queue_drops_the_newest(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A compile never waits for a disk: what does not fit into the queue is counted and gone."""
    collector = FeedbackCollector(spool, queue_records=1)
    add_feedback_saver(collector._saver)
    with triton_choices_on_cpu():
        for m in (16, 32, 48):
            compile_and_run(torch.mm, torch.zeros(m, 128), B)
    assert (collector.stats.recorded, collector.stats.dropped) == (3, 2)
    assert "more than 1 records wait to be written (logged once)" in caplog.text
    collector.start()
    collector.stop()
    assert [found.problem.shape.m for found in spooled(spool)] == [16]


def test_a_full_spool_drops_the_newest(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The spool's limit is kept, and the compile goes on."""
    with triton_choices_on_cpu(), FeedbackCollector(spool, max_bytes=100) as collector:
        compile_and_run(torch.mm, A, B)
    assert (collector.stats.recorded, collector.stats.dropped) == (1, 1)
    assert "its limit is 100" in caplog.text
    assert spooled(spool) == []


def test_a_spool_that_cannot_be_written_is_survived(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A disk that fails costs records, not the compile."""
    with triton_choices_on_cpu(), FeedbackCollector(spool) as collector:
        spool.rmdir()
        compile_and_run(torch.mm, A, B)
    assert collector.stats.recorded == 1
    assert "could not write the spool" in caplog.text
    assert not spool.exists()


def test_a_closed_writer_is_survived(spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A record that the spool refuses is counted as lost."""
    with triton_choices_on_cpu(), FeedbackCollector(spool) as collector:
        collector._background.spool.close()
        compile_and_run(torch.mm, A, B)
    assert collector.stats.dropped == 1
    assert "the spool writer is closed" in caplog.text


def test_a_living_process_hands_over_now_and_then(spool: Path) -> None:
    """diode-ingest leaves a living writer's segment alone, so the writer seals it without being stopped."""
    with triton_choices_on_cpu(), FeedbackCollector(spool, seal_every_s=0.1) as collector:
        compile_and_run(torch.mm, A, B)
        eventually(lambda: len(Spool(spool).sealed()) == 1)
        assert [found.problem.op for found in spooled(spool)] == ["mm"]
        compile_and_run(torch.mm, A.t(), A)
    assert collector.stats.recorded == 2
    assert len(spooled(spool)) == 2


@pytest.mark.long
def test_a_forked_child_collects_nothing_and_ends(spool: Path) -> None:
    """A child has no writer: it must neither fill the queue nor wait at its end for what fills it."""
    script = Path(__file__).parent / "feedback_fork.py"
    said = subprocess.check_output([sys.executable, script, spool], text=True, timeout=120)
    assert said.splitlines() == ["child ended with 0", "dropped 1"]
    assert [found.problem.shape.m for found in spooled(spool)] == [64, 65]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue_records": 0}, "queue_records must be a whole number from 1, not 0; leave it out for 1,000"),
        ({"queue_records": -1}, "queue_records must be a whole number from 1, not -1; leave it out for 1,000"),
        ({"queue_records": 1.5}, "queue_records must be a whole number from 1, not 1.5; leave it out for 1,000"),
        ({"max_bytes": 0}, "max_bytes must be a whole number from 1, not 0; leave it out for 1,073,741,824"),
        *(
            ({"seal_every_s": bad}, f"seal_every_s must be seconds from 0.01 to 31,536,000, not {bad!r}; leave it out")
            for bad in (0, -1.0, 1e-9, float("nan"), float("inf"), "60")
        ),
    ],
    ids=str,
)
def test_numbers_that_make_no_sense(settings: dict[str, Any], message: str, spool: Path) -> None:
    """They are refused before anything is compiled or made."""
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}"):
        FeedbackCollector(spool, **settings)
    assert not spool.exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_stopping_does_not_wait_for_a_writer_that_is_gone(spool: Path) -> None:
    """Also with a full queue; what was in it is counted."""

    def end(_: Any) -> None:
        sys.exit()  # ends the thread

    collector = FeedbackCollector(spool, queue_records=1)
    collector._background.spool.append = end  # type: ignore[method-assign]
    collector.start()
    collector.take(measurement())
    eventually(lambda: not collector._background.thread.is_alive())
    collector.take(measurement(1))
    stopping = threading.Thread(target=collector.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    assert collector.stats.dropped == 1


def test_a_record_after_the_stop_is_dropped(spool: Path) -> None:
    """A compile that was under way then still reports, to a writer that is gone."""
    collector = FeedbackCollector(spool)
    collector.start()
    collector.take(measurement())
    collector.stop()
    collector.take(measurement(1))
    assert collector.stats.dropped == 1
    assert [found.problem.shape.m for found in spooled(spool)] == [64]


@pytest.mark.usefixtures("_stock_savers")
def test_starting_again(spool: Path) -> None:
    """It is harmless while it collects, and a clear error later."""
    with FeedbackCollector(spool) as collector:
        collector.start()
        assert get_algorithm_selector_cache().feedback_saver_fns.count(collector._saver) == 1
    with pytest.raises(SpoolError, match="cannot start again; make another with collect_to_spool"):
        collector.start()
    assert collector._saver not in get_algorithm_selector_cache().feedback_saver_fns
