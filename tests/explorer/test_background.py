"""What is worked out in processes of their own: results, progress, failures, limits, and what is kept."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

import diode_explorer.background as background_module
from diode_explorer.background import Background, Task
from diode_store.errors import DiodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Doubled(Task[tuple[str, int, int]]):
    """Returns twice a number, with the warehouse and the process that worked it out; zero makes no sense."""

    number: int
    generation: int = field(default=0, compare=False)

    def work(self, database: str, tell: Callable[[float], None]) -> tuple[str, int, int]:
        """Return it."""
        print("this is no answer")  # noqa: T201 - a library may print
        tell(0.5)
        if not self.number:
            raise DiodeError("nothing to double\nat all")
        return database, 2 * self.number, os.getpid()


@dataclass(frozen=True)
class Endless(Task[None]):
    """Never ends by itself."""

    def work(self, database: str, tell: Callable[[float], None]) -> None:  # noqa: ARG002 - nothing comes of it
        """Say that a quarter is done, and do no more."""
        tell(0.25)
        time.sleep(100)


@dataclass(frozen=True)
class Killed(Task[None]):
    """Is ended from outside."""

    def work(self, database: str, tell: Callable[[float], None]) -> None:  # noqa: ARG002 - nothing comes of it
        """End this process as the kernel does where memory is short."""
        os.kill(os.getpid(), 9)


@pytest.fixture
def background() -> Iterator[Background]:
    """Return one that allows ten seconds."""
    with Background("warehouse.db", limit_s=10) as found:
        yield found


def test_a_result(background: Background) -> None:
    """Comes from another process, and is kept."""
    assert background.look(Doubled(3)).is_under_way
    found = background.wait(Doubled(3))
    assert found.result is not None
    assert (found.result[:2], found.error, found.is_under_way) == (("warehouse.db", 6), "", False)
    assert found.result[2] != os.getpid()
    assert background.wait(Doubled(3)).result == found.result


def test_a_failure_says_why_in_one_line(background: Background) -> None:
    """Also where the process is killed; what comes next is worked out."""
    assert background.wait(Doubled(0)).error == "nothing to double"
    assert "out of memory?" in background.wait(Killed()).error
    assert background.wait(Doubled(1)).result is not None


def test_the_limit() -> None:
    """What takes too long is ended, and it is said how far it came."""
    with Background("", limit_s=8) as background:
        shares = set()
        while (progress := background.look(Endless())).is_under_way:
            shares.add(progress.share)
            time.sleep(0.02)
    assert (progress.error, shares) == ("the process of this task took more than 8 s", {0.0, 0.25})


def test_an_old_result_stays_until_there_is_a_newer_one(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is worked out anew only when it is old and the cache has changed."""
    first = background.wait(Doubled(2, generation=1)).result
    assert background.look(Doubled(2, generation=2)).is_under_way is False
    monkeypatch.setattr(background_module, "_OLD_S", 0.0)
    assert background.look(Doubled(2, generation=1)).is_under_way is False
    renewing = background.look(Doubled(2, generation=2))
    assert (renewing.result, renewing.is_under_way) == (first, True)
    renewed = background.wait(Doubled(2, generation=2)).result
    assert first is not None
    assert renewed is not None
    assert (renewed[:2], renewed[2] == first[2]) == (first[:2], False)


def test_no_more_than_can_wait(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for more is told to come back, and of what is kept the oldest goes."""
    monkeypatch.setattr(background_module, "_MOST_WAITING", 2)
    monkeypatch.setattr(background_module, "_MOST_KEPT", 1)
    background.look(Endless())
    while background.look(Endless()).share == 0:
        time.sleep(0.02)
    asked = [background.look(Doubled(number)) for number in (1, 2, 3)]
    assert [each.is_under_way for each in asked] == [True, True, False]
    assert asked[2].error == "too many tasks are waiting; look again later"
    assert background.look(Doubled(1)).is_under_way


def test_leaving_ends_what_is_under_way() -> None:
    """At once, whatever it is at."""
    began = time.monotonic()
    with Background("") as background:
        while background.look(Endless()).share == 0:
            time.sleep(0.02)
        child = background._child
    assert child is not None
    assert child.exit_status == -9
    assert time.monotonic() - began < 20
