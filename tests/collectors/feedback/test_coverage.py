"""How many of the compiled matrix products were observed, in real compiles on this CPU."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from snippets import printed_by
from torch._dynamo.utils import counters
from torch._inductor import select_algorithm
from torch._inductor.exc import InductorError
from torch._inductor.virtualized import V

from diode_collectors.feedback.collector import FeedbackCollector
from diode_collectors.feedback.coverage import CounterWatch, Coverage, Fate, inside_a_choice
from diode_collectors.feedback.listening import AutotuningListener
from inductor_harness import block_time_ms, compile_and_run, triton_choices_on_cpu
from lanes import long

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.records import Measurement

DISTRIBUTED = str(Path(__file__).with_name("distributed_compile.py"))

A, B = torch.zeros(64, 128), torch.zeros(128, 32)
BATCH = torch.zeros(2, 16, 16)


def covered(
    function: Any, *inputs: torch.Tensor, times: int = 1, mode: str = "max-autotune", **options: Any
) -> Coverage:
    """Compile ``function`` so many times and return what a listener covered of it."""
    with triton_choices_on_cpu(**options), AutotuningListener() as listener:
        for _ in range(times):
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(function, mode=mode)(*inputs)
    return listener.coverage()


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply twice."""
    return torch.mm(torch.mm(a, b), b)


@pytest.mark.parametrize("deferred", [False, True])
def test_what_is_recorded_is_covered(deferred: bool) -> None:  # noqa: FBT001 - a case
    """Two products of one graph, timed while lowering or in the scheduler, are two that were seen."""
    square = torch.zeros(32, 32)
    assert covered(twice, A[:, :32], square, deferred=deferred) == Coverage(total=2, recorded=2)


def test_dynamic_shapes_are_covered() -> None:
    """A product of symbolic sizes is one product."""
    a = A.clone()
    torch._dynamo.mark_dynamic(a, 0)
    assert covered(torch.mm, a, B) == Coverage(total=1, recorded=1)


def test_graphs_from_the_compile_cache_are_counted_apart() -> None:
    """Nothing in a cached graph is lowered again, so its products cannot be counted, only the graph."""
    expected = Coverage(total=1, recorded=1, cached_graphs=2)
    assert covered(torch.mm, A, B, times=3, fx_graph_cache=True) == expected


def test_replays_are_told_from_records() -> None:
    """What came back from the autotuning cache was seen, but not timed."""
    assert covered(torch.mm, A, B, times=2, autotune_local_cache=True) == Coverage(total=2, recorded=1, replayed=1)


def test_a_cached_graph_does_not_hide_a_replay() -> None:
    """Torch counts a cached graph's benchmarks as if they had run now; a replay behind it is one all the same."""
    heard: list[Measurement] = []
    with (
        triton_choices_on_cpu(fx_graph_cache=True, autotune_local_cache=True),
        AutotuningListener(heard.append) as listener,
    ):
        compile_and_run(torch.mm, A, B)
        compile_and_run(torch.bmm, BATCH, BATCH + 1)
        compile_and_run(torch.mm, A, B)
        compile_and_run(lambda a, b: torch.bmm(torch.bmm(a, b), b), BATCH, BATCH + 1)
    assert [measurement.is_replay for measurement in heard] == [False, False, True, True]
    assert listener.coverage() == Coverage(total=4, recorded=2, replayed=2, cached_graphs=1)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backends": "ATEN"}, Coverage(total=1, single_choice=1)),
        ({"mode": "default"}, Coverage(total=1, max_autotune_off=1)),
        ({"deterministic": True}, Coverage(total=1, deterministic=1)),
    ],
    ids=["single", "off", "deterministic"],
)
def test_what_is_not_timed_says_why(options: dict[str, Any], expected: Coverage) -> None:
    """One choice only, max-autotune off, deterministic mode."""
    assert covered(torch.mm, A, B, **options) == expected


@pytest.mark.long
def test_a_product_made_pointwise_is_counted() -> None:
    """Inductor makes a sum of a row times a column, and nothing is chosen."""
    assert covered(
        torch.mm, torch.zeros(1, 64), torch.zeros(64, 1), backends="ATEN,CPP", cpu_backend="cpp"
    ) == Coverage(total=1, pointwise=1)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_product_whose_choices_all_fail_is_counted(deferred: bool) -> None:  # noqa: FBT001 - a case
    """Where nothing works, Inductor gives the compile up and reports nothing."""
    with (
        triton_choices_on_cpu(time_ms=lambda _: float("inf"), deferred=deferred),
        AutotuningListener() as listener,
        pytest.raises(InductorError, match="NoValidChoicesError"),
    ):
        compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=1, no_valid_choice=1)


def test_a_compile_that_breaks_off_is_counted() -> None:
    """Choices were offered and never timed."""
    cache = torch._inductor.select_algorithm.AlgorithmSelectorCache
    with triton_choices_on_cpu(), AutotuningListener() as listener:
        with (
            pytest.raises(KeyboardInterrupt),
            mock.patch.object(cache, "do_autotuning", side_effect=KeyboardInterrupt),
        ):
            compile_and_run(torch.mm, A, B)
        assert listener.coverage() == Coverage(total=1, unfinished=1)
        compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=2, unfinished=1, recorded=1)


def test_pipelined_autotuning_tells_nobody() -> None:
    """Inductor then times in a subprocess (which a stub stands in for) and calls no saver."""

    def results(choices: Any, *_: Any, **__: Any) -> dict[Any, float]:
        return {choice: block_time_ms(choice) for choice in choices}

    tuner = getattr(select_algorithm, "AsyncAutotuner", None)
    if tuner is None:
        pytest.skip("this torch autotunes nothing in the background")
    with mock.patch.object(tuner, "start"), mock.patch.object(tuner, "get_results", results):
        assert covered(torch.mm, A, B, pipeline_max_autotune_gemm=True) == Coverage(total=1, pipelined=1)


@long
def test_what_another_rank_timed_is_counted(tmp_path: Path) -> None:
    """With distributed autotuning each of two ranks times one of two products and is told of the other."""
    expected = str(Coverage(total=2, recorded=1, distributed=1))
    # On a busy machine both ranks have been seen to wait in the compile until they ended themselves; hence two tries.
    for attempt in ("first", "second"):
        ended = run_together([sys.executable, DISTRIBUTED, str(tmp_path / attempt), str(rank)] for rank in range(2))
        if not any("Timeout (" in errors for _, _, errors in ended):
            break
    last_lines = [(code, said.splitlines()[-1:]) for code, said, _ in ended]
    assert last_lines == [(0, [expected])] * 2, "\n".join(errors for _, _, errors in ended)


def test_ranks_that_hang_are_killed(tmp_path: Path) -> None:
    """Neither a rank nor what it started outlives its test: the locks that they share come free."""
    code = "import fcntl, os, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); os.fork(); time.sleep(600)"
    locks = [tmp_path / name for name in ("first", "second")]
    with pytest.raises(subprocess.TimeoutExpired):
        run_together(([sys.executable, "-c", code, str(lock)] for lock in locks), within_s=2)
    for lock in locks:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def run_together(commands: Iterable[list[str]], within_s: float = 180) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of processes that need each other; none outlives this call."""
    with ExitStack() as stack:
        processes = []
        for command in commands:
            pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen(command, start_new_session=True, **pipes))
            stack.callback(_kill_session, process)
            processes.append(process)
        until = time.monotonic() + within_s
        said = [process.communicate(timeout=max(until - time.monotonic(), 0.1)) for process in processes]
        return [(process.returncode, *texts) for process, texts in zip(processes, said, strict=True)]


def _kill_session(process: subprocess.Popen[str]) -> None:
    """Kill what is left of a process and of those that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def test_what_cannot_be_recorded_is_counted(tmp_path: Path) -> None:
    """A record that nobody can take, and one that does not fit the spool."""

    def refuse(_: Measurement) -> None:
        raise RuntimeError("no room")

    with triton_choices_on_cpu(), AutotuningListener(refuse) as listener:
        compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=1, failed=1)
    with triton_choices_on_cpu(), FeedbackCollector(tmp_path / "spool", max_bytes=100) as collector:
        compile_and_run(torch.mm, A, B)
    assert collector.coverage() == Coverage(total=1, dropped=1)


def test_two_products_in_one_are_one() -> None:
    """A sum of two products has a kernel of its own, and torch's count of products leaves it out."""
    a, b = torch.ones(64, 128), torch.ones(128, 32)
    found = covered(lambda a, b, c, d: torch.mm(a, b) + torch.mm(c, d), A, B, a, b)
    assert found == Coverage(total=1, recorded=1)


def test_what_nobody_saw_is_said() -> None:
    """Where another drops our preprocessing, torch's own count shows what is missing."""
    with triton_choices_on_cpu(backends="ATEN"), AutotuningListener() as listener:
        torch._inductor.select_algorithm.clear_preprocessing_fns()
        compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=1, unexplained=1)


def test_events_of_unseen_lists_are_counted() -> None:
    """An event counts also where its list of choices was not seen."""
    with triton_choices_on_cpu(), AutotuningListener() as listener:
        torch._inductor.select_algorithm.clear_preprocessing_fns()
        compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=1, recorded=1)


def test_counts_survive_a_restart_and_cleared_counters() -> None:
    """What was covered adds up over several starts, and where torch's counters are cleared in between."""
    with triton_choices_on_cpu():
        with AutotuningListener() as listener:
            compile_and_run(torch.mm, A, B)
            counters.clear()
            compile_and_run(torch.mm, A, B)
        compile_and_run(torch.mm, A, B)
        with listener:
            compile_and_run(torch.mm, A, B)
    assert listener.coverage() == Coverage(total=3, recorded=3)


def test_counters_are_watched_over_a_clear() -> None:
    """Counts from before and after a clear add up; those of other names do not count."""
    watch = CounterWatch("diode_test", lambda name: name != "other")
    counters["diode_test"]["mm"] += 2
    counters["diode_test"]["other"] += 5
    del counters["diode_test"]
    counters["diode_test"]["bmm"] += 1
    assert watch.moved() == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, False),
        ("true_graph_0", False),
        ("benchmark_decompose_k_mm_4_split_0", True),
        ("decompose_k_mm_4_split_2", True),
        ("graph_contiguous_addmm_1", True),
    ],
)
def test_the_inside_of_a_choice_is_no_product(name: str | None, expected: bool) -> None:  # noqa: FBT001 - a case
    """A choice such as decompose_k is a graph with a product in it, which is not the user's."""
    with V.set_graph_handler(_named(name)):
        assert inside_a_choice() is expected


def _named(name: str | None) -> mock.Mock:
    graph = mock.Mock()
    graph.name = name
    return graph


def test_stopping_logs_the_line(caplog: pytest.LogCaptureFixture) -> None:
    """It is a warning, which shows where nobody set logging up, only if something was not observed."""
    with caplog.at_level(logging.INFO, "diode_collectors.feedback.listening"), triton_choices_on_cpu():
        with AutotuningListener():
            compile_and_run(torch.mm, A, B)
        with AutotuningListener(), torch._inductor.config.patch(max_autotune_gemm_backends="ATEN"):
            compile_and_run(torch.mm, A, B)
    assert [(said.levelname, said.message) for said in caplog.records] == [
        ("INFO", "matrix products compiled: 1 (1 recorded)"),
        ("WARNING", "matrix products compiled: 1 (1 with one choice only)"),
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Coverage(), True),
        (Coverage(total=2, recorded=1, replayed=1), True),
        (Coverage(total=2, recorded=1, dropped=1), False),
        (Coverage(total=1, recorded=1, cached_graphs=1), False),
    ],
    ids=str,
)
def test_a_complete_coverage(found: Coverage, expected: bool) -> None:  # noqa: FBT001 - a case
    """Every product was recorded or replayed, and none is in a graph that cannot be counted."""
    assert found.is_complete is expected


def test_the_line_says_how_many_and_why() -> None:
    """It adds up."""
    found = Coverage(total=5, recorded=3, single_choice=1, unexplained=1, cached_graphs=2)
    assert str(found) == (
        "matrix products compiled: 5 (3 recorded, 1 with one choice only, 1 unexplained); "
        "not counted: those of 2 graphs from the compile cache"
    )
    assert str(Coverage(cached_graphs=1)).endswith("those of 1 graph from the compile cache")
    assert found.reasons == {"recorded": 3, "with one choice only": 1, "unexplained": 1}


def test_every_fate_is_a_part_of_the_total() -> None:
    """What can become of a product is what the total is a sum of."""
    assert {*Coverage.__dataclass_fields__} - {"total", "cached_graphs"} == {*Fate}


@pytest.mark.long
def test_the_page_says_what_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The documentation's example prints what is said there, the log too, and its table has every reason."""
    page = (Path(__file__).parents[3] / "docs" / "collect_in_process.md").read_text(encoding="utf-8")
    section = page.partition("## Coverage")[2]
    code, printed = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[0] for kind in ("python", "text"))
    assert printed_by(code, tmp_path) == printed
    assert [said.levelname for said in caplog.records if said.message == printed.strip()] == ["WARNING"]
    every = Coverage(**dict.fromkeys(Coverage.__dataclass_fields__, 1))
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert rows == dict(zip(Fate, every.reasons, strict=True))
