"""Waiting for Inductor without importing it."""

from __future__ import annotations

import importlib
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from diode_integration.inductor import after_import
from diode_integration.inductor.after_import import AfterInductor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def entrances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make two modules, the second of which imports the first, and wait for these instead of Inductor's."""
    (tmp_path / "first_entrance.py").write_text("value = 1\n")
    (tmp_path / "second_entrance.py").write_text("import first_entrance\nvalue = 2\n")
    (tmp_path / "broken_entrance.py").write_text("raise ImportError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("first_entrance", "second_entrance", "broken_entrance")
    monkeypatch.setattr(after_import, "ENTRANCES", names)
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("entrances")
def test_the_function_is_called_once_after_the_module_ran() -> None:
    """What an entrance defines is there when the function is called, in the importing thread; then nothing waits."""
    seen: list[object] = []

    def action() -> bool:
        seen.append((sys.modules["first_entrance"].__dict__["value"], threading.get_ident()))
        return True

    waiting = AfterInductor(action)
    waiting.start()
    module = importlib.import_module("second_entrance")
    assert seen == [(1, threading.get_ident())]
    assert (waiting.waiting, module.value, module.__loader__) == (False, 2, module.__spec__.loader)


@pytest.mark.usefixtures("entrances")
def test_several_may_wait() -> None:
    """Each is called, and none asks the others for the module without end."""
    called: list[int] = []
    answers = [False, True]
    several = [
        AfterInductor(lambda: called.append(1) is None),
        AfterInductor(lambda: called.append(2) or answers.pop(0)),
    ]
    several.append(AfterInductor(lambda: called.append(3) is None))
    for waiting in several:
        waiting.start()
    importlib.import_module("second_entrance")
    assert sorted(called) == [1, 2, 2, 3]
    assert not any(waiting.waiting for waiting in several)


@pytest.mark.usefixtures("entrances")
def test_what_is_not_done_is_tried_again() -> None:
    """A function that is not done is called after the next entrance too."""
    answers = [False, True]
    waiting = AfterInductor(lambda: answers.pop(0))
    waiting.start()
    importlib.import_module("first_entrance")
    assert waiting.waiting
    importlib.import_module("second_entrance")
    assert (waiting.waiting, answers) == (False, [])


@pytest.mark.usefixtures("entrances")
def test_the_function_may_import_the_other_entrance() -> None:
    """The import inside the function calls it no second time."""
    called: list[str] = []

    def action() -> bool:
        called.append("outer" if not called else "inner")
        importlib.import_module("second_entrance")
        return True

    AfterInductor(action).start()
    importlib.import_module("first_entrance")
    assert called == ["outer"]


@pytest.mark.usefixtures("entrances")
def test_another_thread_waits_until_it_is_done() -> None:
    """A thread that imports the same entrance meanwhile has it only when the function is done."""
    begun, go_on, order = threading.Event(), threading.Event(), []

    def action() -> bool:
        begun.set()
        assert go_on.wait(30)
        order.append("done")
        return True

    def import_too() -> None:
        importlib.import_module("first_entrance")
        order.append("imported")

    AfterInductor(action).start()
    threads = [threading.Thread(target=import_too) for _ in range(2)]
    threads[0].start()
    assert begun.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert order == ["done", "imported", "imported"]


@pytest.mark.usefixtures("entrances")
def test_cancelled_before_and_while_it_is_imported() -> None:
    """What was cancelled is not called, also if the import had begun."""
    called: list[int] = []
    waiting = AfterInductor(lambda: bool(called.append(1)))
    waiting.start()
    spec = waiting.find_spec("first_entrance")
    assert spec is not None
    assert spec.loader is not None
    waiting.cancel()
    waiting.cancel()
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    importlib.import_module("second_entrance")
    assert called == []


@pytest.mark.usefixtures("entrances")
def test_an_import_that_fails_fails_as_before() -> None:
    """A broken torch shows its own error, and nothing is installed into it."""
    waiting = AfterInductor(lambda: True)
    waiting.start()
    with pytest.raises(ImportError, match="broken"):
        importlib.import_module("broken_entrance")
    assert waiting.waiting
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_entrance")


@pytest.mark.usefixtures("entrances")
def test_a_function_that_raises_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    """The import goes on, and the log says what failed."""

    def fail() -> bool:
        raise ZeroDivisionError("a bug")

    AfterInductor(fail).start()
    assert importlib.import_module("first_entrance").value == 1
    assert caplog.messages == ["what waited for Inductor failed: ZeroDivisionError: a bug"]
