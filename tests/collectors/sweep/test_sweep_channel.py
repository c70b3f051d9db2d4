"""What a sweep and its lanes say to each other, over real pipes."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_strategies as records
from diode_collectors.problems.problem import BATCHED_OPS, LAYOUTS, OPS, SweepProblem
from diode_collectors.sweep.channel import (
    Channel,
    config_of_message,
    config_to_message,
    environment_of_message,
    excluded_of_message,
    hardware_of_message,
    problem_of_message,
    problem_to_message,
    result_of_message,
    result_to_message,
)
from diode_collectors.sweep.plan import ProblemResult
from diode_store.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = st.integers(1, 2**31)
COUNTS = st.integers(0, 2**31)
SECONDS = st.floats(0, 1e9)


@st.composite
def problems(draw: st.DrawFn) -> SweepProblem:
    """Return anything that can be swept."""
    op = draw(st.sampled_from(OPS))
    dtype = draw(st.sampled_from(["bfloat16", "float16", "float32"]))
    return SweepProblem(
        op,
        draw(SIZES),
        draw(SIZES),
        draw(SIZES),
        draw(SIZES) if op in BATCHED_OPS else 1,
        dtype,
        draw(st.sampled_from(LAYOUTS)),
        draw(st.booleans()) and dtype == "float32",
        draw(records.TEXT),
    )


RESULTS = st.builds(
    ProblemResult,
    problems(),
    records.NAMES,
    timings=COUNTS,
    failures=COUNTS,
    estimates=COUNTS,
    flags=st.lists(records.NAMES, max_size=3).map(tuple),
    compile_s=SECONDS,
    wait_s=SECONDS,
    benchmark_s=SECONDS,
    silent=st.none() | records.TEXT,
    error=st.none() | records.TEXT,
)


@contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    """Yield the two ends of a channel."""
    ours, theirs = os.pipe(), os.pipe()
    ends = Channel(theirs[0], ours[1]), Channel(ours[0], theirs[1])
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


def sent(**message: Any) -> dict[str, Any]:
    """Return a message as the other end receives it."""
    with pair() as (ours, theirs):
        ours.send(**message)
        received = theirs.receive()
        assert received is not None
        return received


@given(problems())
def test_a_problem_arrives_as_it_was(problem: SweepProblem) -> None:
    """With its name, which is no part of what makes it equal."""
    received = problem_of_message(sent(problem=problem_to_message(problem))["problem"])
    assert received == problem
    assert received.name == problem.name


@given(RESULTS)
def test_a_result_arrives_as_it_was(result: ProblemResult) -> None:
    """All of its fields."""
    assert result_of_message(sent(result=result_to_message(result))["result"]) == result


@given(records.CONFIGS, st.sampled_from(Outcome))
def test_an_excluded_config_arrives_as_it_was(config: Any, outcome: Outcome) -> None:
    """Its key, which decides what is left out, is the same; so is how trying it ended."""
    received = config_of_message(sent(config=config_to_message(config))["config"])
    assert received.key == config.key
    assert {f.name: getattr(received, f.name) for f in fields(config) if f.name != "extra"} == {
        f.name: getattr(config, f.name) for f in fields(config) if f.name != "extra"
    }
    told = sent(excluded=[(config_to_message(config), outcome.value)])["excluded"]
    assert excluded_of_message(told) == {received: outcome}


@given(records.HARDWARE, records.ENVIRONMENTS)
def test_hardware_and_environment_arrive_as_they_were(hardware: Any, environment: Any) -> None:
    """So the keys by which the sweep tells what is done are those of the records."""
    received = sent(hardware=asdict(hardware), environment=asdict(environment))
    assert hardware_of_message(received["hardware"]) == hardware
    assert environment_of_message(received["environment"]) == environment
    assert hardware_of_message(received["hardware"]).key == hardware.key


@given(st.lists(records.TEXT, max_size=20), st.integers(1, 50))
def test_messages_come_whole_however_they_were_cut(texts: list[str], piece: int) -> None:
    """A pipe hands over bytes as it likes; a message begun when the other end closes is none."""
    with pair() as (ours, theirs):
        ours.send(number=0)
        whole = b"".join(bytes_of(number=i, text=text) for i, text in enumerate(texts))
        assert theirs.receive() == {"number": 0}
        found: list[dict[str, Any]] = []
        for start in range(0, len(whole), piece):
            os.write(ours._write_fd, whole[start : start + piece])
            messages, is_open = theirs.waiting()
            assert is_open
            found += messages
        os.write(ours._write_fd, b'{"torn": ')
        ours.close()
        assert theirs.waiting() == ([], True)
        assert theirs.waiting() == ([], False)
    assert found == [{"number": i, "text": text} for i, text in enumerate(texts)]


def bytes_of(**message: Any) -> bytes:
    """Return a message as it goes over the pipe."""
    with pair() as (ours, theirs):
        ours.send(**message)
        return os.read(theirs.read_fd, 2**16)


def test_a_message_larger_than_the_pipe_goes_through() -> None:
    """A list of excluded kernels may be long; the sender waits until it is read."""
    with pair() as (ours, theirs):
        thread = threading.Thread(target=lambda: ours.send(text="x" * 1_000_000))
        thread.start()
        received = theirs.receive()
        thread.join()
    assert received == {"text": "x" * 1_000_000}


def test_a_closed_end_is_noticed() -> None:
    """Who receives is told None, who sends gets BrokenPipeError; closing twice is harmless."""
    with pair() as (ours, theirs):
        theirs.close()
        theirs.close()
        assert ours.receive() is None
        with pytest.raises(BrokenPipeError):
            ours.send(do="stop")


def test_hanging_up_still_listens() -> None:
    """The other end learns that nothing more comes, and its last words arrive."""
    with pair() as (ours, theirs):
        ours.hang_up()
        ours.hang_up()
        assert theirs.receive() is None
        theirs.send(type="result")
        assert ours.receive() == {"type": "result"}


def test_no_descriptor_is_left_open() -> None:
    """A sweep restarts lanes any number of times."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        with pair() as (ours, theirs):
            ours.send(a=1)
            theirs.receive()
            ours.hang_up()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
