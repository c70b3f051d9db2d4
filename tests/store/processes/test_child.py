"""Child processes: messages, limits, signals, output, and how their ends are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from diode_store.errors import QueryError
from diode_store.processes.child import Child, ChildError, ChildLateError, ChildMemoryError
from samples import triton_config
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVE, ECHO, CLUMSY = "children:serve", "children:echo", "children:clumsy"


@pytest.fixture
def child() -> Iterator[Child]:
    """Return a child that serves."""
    with Child(SERVE, environment={"DIODE_OF_A_TEST": "set"}) as found:
        yield found


def answer_of(child: Child, request: str, limit_s: float = 60.0) -> tuple[list[Any], Any]:
    """Return the parts and the result of an answer."""
    parts: list[Any] = []
    return parts, child.call(request, parts.append, limit_s)


def test_parts_then_a_result(child: Child) -> None:
    """One request after another, in a process with our path, more variables, and a group of its own."""
    parts, (pid, group, path, variable, handler) = answer_of(child, "count 1000")
    assert parts == list(range(1000))
    assert (pid, group, variable) == (child.pid, child.pid, "set")
    assert {entry for entry in sys.path if entry} <= set(path)
    assert handler == signal.default_int_handler
    assert answer_of(child, "count 2")[0] == [0, 1]


def test_what_is_printed_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """So it never mixes with answers, and a kill loses no line of it."""
    with Child(SERVE) as child:
        answer_of(child, "count 1")
    assert child.exit_status == -9
    assert tuple(capfd.readouterr()) == ("", "this is no answer\n")


def test_what_is_printed_can_go_to_a_file(tmp_path: Path) -> None:
    """Both stdout and stderr, a traceback among it."""
    with (tmp_path / "log").open("wb") as log, Child(SERVE, output=log) as child:
        with pytest.raises(ChildError, match=r"^failed: ValueError: odd$"):
            answer_of(child, "fail")
        child.close(10)
    said = (tmp_path / "log").read_text()
    assert said.startswith("this is no answer\nTraceback (most recent call last):\n")
    assert said.endswith("ValueError: odd\nin two lines\n")


@pytest.mark.parametrize(
    ("request_", "error", "said"),
    [
        ("fail", ChildError, r"^failed: ValueError: odd$"),
        ("exhaust", ChildMemoryError, r"memory"),
        ("signal 9", ChildError, r"^was killed \(out of memory\?\)$"),
        ("signal 11", ChildError, r"^died of signal 11$"),
        ("exit 3", ChildError, r"^ended with exit status 3$"),
        ("unknown", ChildError, r"^failed: AttributeError: .*pickle"),
    ],
)
def test_how_an_end_is_told(child: Child, request_: str, error: type[ChildError], said: str) -> None:
    """In one line; it is no more there for another request."""
    with pytest.raises(ChildError, match=said) as caught:
        answer_of(child, request_)
    assert type(caught.value) is error
    with pytest.raises(ChildError, match=r"ended|was killed|died"):
        answer_of(child, "count 1")


def test_an_error_of_ours_is_raised_again(child: Child) -> None:
    """With its class and whole message; the child goes on."""
    with pytest.raises(QueryError, match="refused\nin two lines"):
        answer_of(child, "refuse")
    assert answer_of(child, "count 1")[0] == [0]


@pytest.mark.parametrize("function", ["no_such_module:serve", "children:no_such_function"])
def test_a_function_that_is_not_there(function: str) -> None:
    """The parent is told, whether it asks or only listens."""
    with Child(function, output=subprocess.DEVNULL) as child, pytest.raises(ChildError, match=r"^failed: .*no_such_"):
        child.receive()
    with Child(function, output=subprocess.DEVNULL) as child:
        while child.waiting()[1]:
            time.sleep(0.01)
        assert child.waiting() == ([], False)


def test_a_message_that_stops_in_the_middle_is_late() -> None:
    """The limit holds for the whole message, not only for its first byte."""
    with Child("children:stop_halfway") as child:
        with pytest.raises(ChildLateError, match=r"^took more than 0.3 s$"):
            child.receive(0.3)
        eventually(lambda: child.exit_status == -signal.SIGKILL)


def test_a_time_limit(child: Child) -> None:
    """It holds for the whole answer, without the time between parts, and ends the process."""
    assert answer_of(child, "count 1")[0] == [0]
    slowly = child.ask("count 2", 5.0)
    next(slowly)
    time.sleep(0.1)
    assert list(slowly) == [1]
    asleep = child.ask("sleep 600", 0.5)
    assert next(asleep) == "asleep"
    with pytest.raises(ChildLateError, match=r"^took more than 0.5 s$"):
        next(asleep)
    child.close()
    assert child.exit_status == -9


def test_a_kill_just_before_the_limit_is_no_timeout(child: Child) -> None:
    """Even if nobody looks before the limit has passed."""
    answer_of(child, "count 1")
    child.send("signal 9")
    time.sleep(0.5)
    with pytest.raises(ChildError, match="was killed") as caught:
        child.receive(0.0)
    assert type(caught.value) is ChildError


@pytest.mark.parametrize("limit_s", [1e9, float("inf")])
def test_a_limit_too_long_to_count(child: Child, limit_s: float) -> None:
    """It is none."""
    assert answer_of(child, "count 1", limit_s)[0] == [0]


def test_closing_from_another_thread(child: Child) -> None:
    """Whoever waits for an answer is told at once."""
    asleep = child.ask("sleep 600")
    next(asleep)
    threading.Timer(0.2, child.close).start()
    with pytest.raises(ChildError, match="was killed"):
        next(asleep)
    with pytest.raises(ChildError):
        child.receive()


def test_what_a_child_started_ends_with_it(child: Child) -> None:
    """Its whole process group does; a process that holds its socket by a fork does not hide its end."""
    _, started = answer_of(child, "start")
    _, forked = answer_of(child, "fork")
    child.close()
    assert child.exit_status == -9
    _, alive = psutil.wait_procs([psutil.Process(p) for p in (started, forked) if psutil.pid_exists(p)], timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_messages_both_ways() -> None:
    """Whole and in order, however large; hanging up ends the child, and what it sent before arrives."""
    large = [b"x" * 3_000_000, {"n": 1}]
    with Child(ECHO) as child:
        for _ in range(3):
            child.send(large)
            assert child.receive(60) == large
        child.send("last")
        while not (found := child.waiting())[0]:
            assert found[1]
        assert found == (["last"], True)
        child.hang_up()
        child.hang_up()
        while child.waiting()[1]:
            time.sleep(0.01)
        child.close(10)
        assert child.exit_status == 7
    with Child(ECHO) as child:
        child.send(None)
        while child.exit_status is None:
            time.sleep(0.01)
        assert child.exit_status == 0
        child.send("nobody hears this")


def test_a_config_is_found_in_the_childs_sets() -> None:
    """Its cached hash, which differs between processes, stays behind."""
    config = triton_config(16)
    assert isinstance(hash(config), int)  # now it is cached
    with Child(SERVE, environment={"PYTHONHASHSEED": "7"}) as child:
        assert child.call(("find", config), lambda _part: None, 60) is True


def test_a_child_that_does_not_end_is_killed(child: Child) -> None:
    """After the patience that was asked for; a usual one ends when its parent hangs up, whatever it does."""
    next(child.ask("sleep 600"))
    child.close(30)
    assert child.exit_status == 0


def test_no_descriptor_and_no_process_is_left_open() -> None:
    """However a child ends."""
    with Child(SERVE):
        pass
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with Child(SERVE) as child:
            answer_of(child, "count 1")
        child.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not psutil.pid_exists(child.pid)


def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is told in one line."""
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildError, match=r"^cannot be started: No such file or directory$"):
        Child(SERVE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_child_ends_with_its_parent(number: signal.Signals) -> None:
    """Even in the middle of an answer, whatever ended the parent."""
    code = (
        "from diode_store.processes.child import Child\n"
        f"asleep = Child({SERVE!r}).ask('sleep 600')\n"
        "next(asleep); print('ready', flush=True); next(asleep)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        children = psutil.Process(parent.pid).children()
        assert len(children) == 1
        parent.send_signal(number)
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


def test_a_child_that_fails_when_its_parent_is_gone_says_nothing() -> None:
    """Nobody is left to read a traceback."""
    code = (
        "import time; from diode_store.processes.child import Child\n"
        f"child = Child({CLUMSY!r}); child.receive(); print('ready', flush=True); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.communicate(timeout=60) == ("", "")
