"""Whatever the hook is handed, and whatever it fails with, the compile around it goes on."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hooked import compile_op, hooked
from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import POLICY_ANNOTATION
from diode_integration.choices import DiodeInductorChoices
from diode_integration.inductor import entry
from diode_integration.inductor.entry import ProcessChoices
from diode_integration.inductor.process import process_choices
from stand_ins import TileModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class MuteError(Exception):
    """An error that cannot say what is wrong."""

    def __str__(self) -> str:
        """Raise."""
        raise RuntimeError("no words")

    __repr__ = __str__


class MuteModel(TileModel):
    """Fails whenever it is asked, with an error that cannot be shown."""

    def predict_us(self, *_asked: object) -> Any:
        """Raise."""
        raise MuteError


class Refusing(dict[str, Any]):
    """Annotations that take no mark of ours."""

    def __setitem__(self, name: str, value: object) -> None:
        """Raise for our keys."""
        if name in {entry.CallMark.KEY, POLICY_ANNOTATION}:
            raise MuteError
        super().__setitem__(name, value)


@contextmanager
def altered(change: Callable[[int, Any], None]) -> Iterator[None]:
    """Let ``change`` alter every choice that Inductor lists; it is told the choice's number in its list."""
    original = InductorChoices.get_ktc

    def altering(self: Any, *arguments: Any) -> Iterator[Any]:
        for number, ktc in enumerate(original(self, *arguments)):
            change(number, ktc)
            yield ktc

    with mock.patch.object(InductorChoices, "get_ktc", altering):
        yield


def refuse_marks(number: int, ktc: Any) -> None:
    """Let every other choice refuse to be marked."""
    if number % 2:
        ktc.annotations = Refusing(ktc.annotations)


@pytest.fixture
def log_that_raises() -> Iterator[None]:
    """Give the hook's logger a filter that raises, as a user's own may."""

    def refuse(_: logging.LogRecord) -> bool:
        raise MuteError

    logger = logging.getLogger("diode_integration")
    logger.addFilter(refuse)
    yield
    logger.removeFilter(refuse)


def test_errors_that_cannot_be_shown_are_survived(caplog: pytest.LogCaptureFixture) -> None:
    """An error whose text cannot be had leaves stock Inductor's list, is logged and stands in the decision."""
    stock = compile_op("mm", None)
    handler = hooked(MuteModel())
    assert compile_op("mm", handler).left == stock.left
    assert "MuteError object at " in handler.decisions()[0].reason
    assert "stock Inductor chooses: <test_never_raises.MuteError object at " in caplog.text


@pytest.mark.usefixtures("log_that_raises")
def test_a_log_that_raises_is_survived(tmp_path: Path) -> None:
    """Log filters and handlers are the user's own, and run where the hook logs: at an error and without a model."""
    stock = compile_op("mm", None)
    for handler in (hooked(MuteModel()), DiodeInductorChoices(tmp_path / "none.pt", hardware="h200")):
        assert compile_op("mm", handler).left == stock.left


@pytest.mark.quick(1)
@pytest.mark.parametrize("search_space", ["EXHAUSTIVE", "inherit"])
def test_choices_that_refuse_marks_are_survived(search_space: str) -> None:
    """Choices whose annotations raise cost the model's decision, not the compile."""
    stock = compile_op("mm", None)
    handler = hooked(TileModel(vendor_us=20.5), search_space=search_space)
    with altered(refuse_marks):
        watch = compile_op("mm", handler)
    assert watch.left == stock.left
    assert handler.get_stats()["model_selections"] == 0
    assert all(POLICY_ANNOTATION not in choice.annotations for choice in watch.kept[0])


@pytest.mark.quick(1)
@pytest.mark.parametrize("options", [{"observe": True}, {"hardware": None}], ids=["observed", "abstained"])
def test_stock_choices_that_refuse_marks_are_survived(options: dict[str, Any]) -> None:
    """Where stock Inductor chooses, a choice that cannot be marked stays, and the others tell of the decision."""
    stock = compile_op("mm", None)
    handler = hooked(**options)
    with altered(refuse_marks):
        watch = compile_op("mm", handler)
    assert watch.left == stock.left
    assert len(handler.decisions()) == 1
    assert handler.get_stats()["fallback_error"] >= 1


class Hostile:
    """A choice of another hook's."""

    def __init__(self, annotations: object) -> None:
        self.annotations = annotations


class Grudging(dict[str, Any]):
    """Annotations that cannot be read."""

    def get(self, *_: object) -> Any:
        """Raise."""
        raise MuteError


@pytest.mark.parametrize(
    "annotations", [Grudging(), {entry.CallMark.KEY: "another hook's"}], ids=["unreadable", "taken"]
)
def test_choices_of_others_go_through_the_final_selection(annotations: dict[str, Any]) -> None:
    """What is not our mark is left alone, whatever it is."""
    choices = [Hostile(annotations)]
    assert entry.final_selection(choices) is choices


def test_an_uninstall_in_between_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that asks while another uninstalls gets one answer or the other, never an error."""

    class Vanishing:
        """A handler that another thread uninstalls as soon as it was looked at."""

        def __bool__(self) -> bool:
            ProcessChoices.handler = None
            return True

        def uuid(self) -> str:
            """Return a key."""
            return "vanishing"

    monkeypatch.setattr(ProcessChoices, "handler", Vanishing())
    assert process_choices().uuid() == "vanishing"
