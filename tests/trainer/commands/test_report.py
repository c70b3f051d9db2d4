from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from diode_trainer.training.history import history_path

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import RunCommand

QUICK = ("--num-epochs", "5", "--hidden-dim", "8", "--num-layers", "1")


def heading(page: Path) -> str:
    """Return a page's first line for readers."""
    (found,) = re.findall(r"<h1>(.*?)</h1>", page.read_text(encoding="utf-8"))
    return str(found)


def test_report_of_a_stored_model(diode: RunCommand, trained: Path, tmp_path: Path) -> None:
    """The page says whose it is, what flatters it, how it learned, and where the data is from; the table is printed."""
    page = tmp_path / "out.html"
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--report", str(page))
    assert (result.code, result.out.splitlines()[1].split()[0]) == (0, "quick"), result.err
    assert f"report: {page}" in result.err
    text = page.read_text(encoding="utf-8")
    assert heading(page) == "quick on NVIDIA H200"
    assert "it was trained on 24 of these 24 problems, so the figures flatter it" in text
    assert "<dt>data sets</dt>\n<dd>synthetic</dd>" in text
    assert 'data-name="learning-curve"' in text
    # One member cannot disagree.
    assert 'data-name="calibration-of-spread"' not in text
    assert "The model has one member, so it predicts no loss of its own." in text


@pytest.mark.long
def test_reports_are_reproducible(diode: RunCommand, trained: Path, tmp_path: Path) -> None:
    """Equal models and data give the same bytes, wherever the page is written."""
    pages = [tmp_path / "a" / "one.html", tmp_path / "b" / "two.html"]
    for page in pages:
        assert diode("evaluate", "--model", "quick", "--hardware", "h200", "--report", str(page)).code == 0
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.long
def test_report_without_a_history(diode: RunCommand, trained: Path, tmp_path: Path) -> None:
    """A model without its history has no learning curve, and a line says so; a damaged one is not fatal either."""
    command = ("evaluate", "--model", "quick", "--hardware", "h200", "--report", str(tmp_path / "out.html"))
    history_path(trained).write_text("{")
    assert diode(*command).code == 0
    assert "not a history of fits" in (tmp_path / "out.html").read_text(encoding="utf-8")
    history_path(trained).unlink()
    assert diode(*command).code == 0
    assert "Left out: there is no quick.history.json beside the model" in (tmp_path / "out.html").read_text("utf-8")


@pytest.mark.long
def test_report_without_the_vendor(diode: RunCommand, trained: Path, tmp_path: Path) -> None:
    """With --no-vendor the report counts Triton's choices too, and says so."""
    page = tmp_path / "out.html"
    result = diode("evaluate", "--model", "quick", "--hardware", "h200", "--no-vendor", "--report", str(page), "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["problems"] == 24
    assert "Triton choices only: 24 problems, ranked by a stored model." in page.read_text(encoding="utf-8")


def test_report_of_a_training(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """The folds are pooled, both tables are there, and the members' spread is judged on what they had not seen."""
    page = tmp_path / "out.html"
    result = diode("train", "--hardware", "h200", "--name", "mine", *QUICK, "--report", str(page))
    assert result.code == 0, result.err
    text = page.read_text(encoding="utf-8")
    assert (
        "All choices: 24 problems, pooled over 5 folds. Every problem was judged by a fit that had not seen it" in text
    )
    assert "Triton choices only: 24 problems, pooled over 5 folds" in text
    assert 'data-name="calibration-of-spread"' in text
    assert 'data-name="learning-curve"' in text
    assert "--report" not in re.findall(r"<dt>made with</dt>\n<dd>(.*?)</dd>", text)[0]


def test_a_training_without_folds_has_no_report(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """What is not evaluated cannot be reported; that is bad usage, said before anything is fitted."""
    result = diode("train", "--hardware", "h200", *QUICK, "--folds", "0", "--report", str(tmp_path / "out.html"))
    assert result.code == 2
    assert "a report needs an evaluation; --folds 0 has none" in result.err


@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_bad_places_are_refused_first(command: str, diode: RunCommand, tmp_path: Path) -> None:
    """Before any data is read, a page that cannot be written is one line."""
    model = ("--model", "none") if command == "evaluate" else ()
    result = diode(command, "--hardware", "h200", *model, "--report", str(tmp_path))
    assert (result.code, result.out) == (1, "")
    assert result.err == f"error: {tmp_path} is a folder; name the file, such as --report {tmp_path}/report.html\n"


def test_missing_extra(diode: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra's packages, one line says what to install."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    result = diode("evaluate", "--model", "none", "--hardware", "h200", "--report", str(tmp_path / "out.html"))
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: a report needs packages that are not installed; run `pip install 'torch-diode[report]'`\n"
    )


def test_a_model_with_the_name_of_a_baseline(diode: RunCommand, filled: str, tmp_path: Path) -> None:
    """A model may be called as a baseline is; both are in the report."""
    page = tmp_path / "out.html"
    result = diode("train", "--hardware", "h200", "--name", "random", *QUICK, "--folds", "1", "--report", str(page))
    assert result.code == 0, result.err
    names = re.findall(r'<tr(?: class="marked")?>\s*<td>([^<]*)</td>', page.read_text(encoding="utf-8"))
    assert names[0] == "random"
    assert "random (baseline)" in names
