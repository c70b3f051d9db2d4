"""The hook with corrections of its model's predictions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hooked import compile_op, hooked

from diode_store.candidates.columns import ConfigColumns
from diode_store.errors import ModelError
from diode_trainer.corrections.corrections import VENDOR, Corrections, ProblemOffsets
from stand_ins import H200, TileModel, asked_about

if TYPE_CHECKING:
    from diode_store.records import Problem

DEVICE = (H200.name, H200.arch, H200.multiprocessors)
FAVOURITE = ("triton::mm", 64, 64, 32, 8, 3, 4, False)
"""Of a ``TileModel``: it predicts 20 us, and 10 us for the vendor's kernel."""


def compiled_problem(op: str = "mm") -> Problem:
    """Return what the hook takes an op of ``hooked.OPS`` for."""
    handler = hooked()
    compile_op(op, handler)
    problem = handler.decisions()[0].problem
    assert problem is not None
    return problem


def write(path: Path, problem: Problem, offsets: ProblemOffsets, sha256: str = "a" * 64) -> Path:
    """Write the corrections of one problem."""
    Corrections(sha256, {(DEVICE, problem.shape): offsets}, "stand-in").write(path)
    return path


@pytest.fixture
def corrections(tmp_path: Path) -> Path:
    """Return corrections by which the vendor's kernel of the mm is slow and the favourite tile fast."""
    offsets = ProblemOffsets(0.0, {VENDOR: 2.0}, {FAVOURITE: -0.5, ("aten::mm", 0, 0, 0, 0, 0, 0, False): 1.5})
    return write(tmp_path / "c.json", compiled_problem(), offsets)


def test_corrections_decide_a_compile(corrections: Path) -> None:
    """What was measured of a problem overrides what the model says of it, in a real compile."""
    assert compile_op("mm", hooked(mode="zero")).left == [["mm"]]
    handler = hooked(mode="zero", corrections=corrections)
    watch = compile_op("mm", handler, run_vendor=True)
    assert watch.left == [["triton 64x64x32 s3 w4"]]
    (decision,) = handler.decisions()
    assert decision.chosen[0].predicted_us == pytest.approx(20 * np.exp(-0.5))
    assert decision.vendor_us is None or decision.vendor_us == pytest.approx(10 * np.exp(1.5))
    assert handler.get_stats()["corrected"] >= 1


def test_other_problems_are_as_the_model_says(corrections: Path) -> None:
    """A problem of which nothing was measured is decided as without corrections."""
    handler = hooked(mode="zero", corrections=corrections)
    assert compile_op("bmm", handler).left == compile_op("bmm", hooked(mode="zero")).left
    assert "corrected" not in handler.get_stats()


def test_a_config_that_never_ran_is_not_kept(tmp_path: Path) -> None:
    """In zero mode a compile would fail with it; the next best is kept."""
    offsets = ProblemOffsets(0.0, {VENDOR: 2.0}, {FAVOURITE: float("inf")})
    handler = hooked(mode="zero", corrections=write(tmp_path / "c.json", compiled_problem(), offsets))
    (left,) = compile_op("mm", handler, run_vendor=True).left
    assert len(left) == 1
    assert left != ["triton 64x64x32 s3 w4"]
    assert left[0].startswith("triton ")


def test_corrections_may_be_named_by_the_environment(corrections: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``import torch_diode`` takes no options; DIODE_CORRECTIONS names the file."""
    monkeypatch.setenv("DIODE_CORRECTIONS", str(corrections))
    assert compile_op("mm", hooked(mode="zero"), run_vendor=True).left == [["triton 64x64x32 s3 w4"]]


def test_corrections_are_part_of_the_cache_key(corrections: Path, tmp_path: Path) -> None:
    """A compile under other corrections, or none, is another one; without, the key is what it was."""
    other = write(tmp_path / "d.json", compiled_problem(), ProblemOffsets(0.5, {}, {}))
    keys = [hooked().uuid(), *(hooked(corrections=path).uuid() for path in (corrections, other))]
    assert len(set(keys)) == 3
    assert hooked(corrections=corrections).uuid() == keys[1]
    assert "corrected" not in keys[0]


def refusal(path: Path) -> str:
    """Return why a handler without fallback does not take corrections."""
    with pytest.raises(ModelError) as refused:
        hooked(corrections=path, enable_fallback=False)
    return str(refused.value)


def test_corrections_of_another_model_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are refused in one line; with fallback that is logged, and the model decides alone."""
    path = write(tmp_path / "c.json", compiled_problem(), ProblemOffsets(0.0, {VENDOR: 2.0}, {}), sha256="b" * 64)
    expected = (
        f"{path}: these are corrections of stand-in bbbbbbbbbbbb…, not of stand-in aaaaaaaaaaaa…; make them again with"
        " `diode corrections`"
    )
    assert refusal(path) == expected
    caplog.clear()
    with caplog.at_level(logging.WARNING, "diode_integration"):
        handler = hooked(corrections=path, mode="zero")
    assert caplog.messages == [f"predictions are not corrected: {expected}"]
    assert compile_op("mm", handler).left == [["mm"]]


@pytest.mark.parametrize("content", [None, "", '{"version": 1, "problems": 3}'], ids=["missing", "empty", "damaged"])
def test_corrections_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    """A missing or damaged file is one line for who asked for it, and no obstacle for a compile."""
    path = tmp_path / "c.json"
    if content is not None:
        path.write_text(content)
    assert refusal(path).startswith(f"{path}: ")
    assert compile_op("mm", hooked(corrections=path, mode="zero")).left == [["mm"]]


def test_a_home_that_nobody_has() -> None:
    """A path that cannot be made whole is one line too, and no obstacle for a compile."""
    assert refusal(Path("~nobody-has-this-name/c.json")).startswith(
        "~nobody-has-this-name/c.json: there is no such user"
    )
    assert compile_op("mm", hooked(corrections="~nobody-has-this-name/c.json", mode="zero")).left == [["mm"]]


class Odd(TileModel):
    """Gives one time too few."""

    def predict_us(self, *asked: Any) -> Any:
        """Return too little."""
        return super().predict_us(*asked)[1:]


def test_a_model_that_gives_too_few_times_is_still_refused(corrections: Path) -> None:
    """Corrections do not hide it."""
    handler = hooked(Odd(), corrections=corrections)
    compile_op("mm", handler)
    assert handler.get_stats()["fallback_features"] >= 1


def test_corrected_predictions_are_cached(corrections: Path) -> None:
    """A problem that comes again costs no second look, neither at the model nor at the corrections."""
    handler = hooked(corrections=corrections)
    assert handler.models is not None
    problem, columns = compiled_problem(), ConfigColumns.from_rows([FAVOURITE])
    first, again = (asked_about(handler.models, problem, H200).rank(problem, H200, columns) for _ in range(2))
    assert first.predicted_us is again.predicted_us
    assert first.corrected
    assert again.corrected
    assert isinstance(handler.model, TileModel)
    assert handler.model.asked == 1
