from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from diode_store.errors import ReportError
from diode_trainer.report.evaluation.output import Destination, write_report

if TYPE_CHECKING:
    from diode_trainer.report.evaluation.content import Evidence


def interrupt() -> NoReturn:
    """Do what Ctrl-C does."""
    raise KeyboardInterrupt


@pytest.mark.long
def test_a_page_and_a_folder_of_pictures(evidence: Evidence, tmp_path: Path) -> None:
    """The page, and of each picture a PNG and its specification; folders are made."""
    to = Destination(tmp_path / "new" / "out.html", tmp_path / "pictures")
    assert write_report(evidence, to) == [to.page, to.pictures]
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"regret-map.png", "regret-map.vl.json"} <= names
    assert {name.partition(".")[2] for name in names} == {"png", "vl.json"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.html"]


@pytest.mark.long
def test_pictures_alone(evidence: Evidence, tmp_path: Path) -> None:
    """Either can be asked for without the other."""
    assert write_report(evidence, Destination(None, tmp_path / "pictures")) == [tmp_path / "pictures"]
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


@pytest.mark.long
def test_equal_evaluations_give_equal_files(evidence: Evidence, tmp_path: Path) -> None:
    """The page, the pictures and their specifications are the same byte for byte."""
    written = []
    for name in ("first", "second"):
        write_report(replace(evidence), Destination(tmp_path / name / "out.html", tmp_path / name))
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]


def test_nothing_is_left_of_an_interrupted_report(evidence: Evidence, tmp_path: Path) -> None:
    """Ctrl-C while pictures are drawn leaves an earlier report as it was, and no file beside it."""
    to = Destination(tmp_path / "out.html", tmp_path)
    (tmp_path / "out.html").write_text("earlier")
    with pytest.raises(KeyboardInterrupt):
        write_report(evidence, to, interrupt)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.html": "earlier"}


def test_a_file_that_cannot_be_written(evidence: Evidence, tmp_path: Path) -> None:
    """What becomes impossible after the check is an error of one line, and nothing is half written."""
    (tmp_path / "out.html").mkdir()
    with pytest.raises(ReportError, match=r"^cannot write the report: .*out\.html"):
        write_report(evidence, Destination(tmp_path / "out.html", None))
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_no_place_for_a_report(tmp_path: Path) -> None:
    """A folder instead of a file, a file instead of a folder, or a folder that takes nothing is refused beforehand."""
    (tmp_path / "file").touch()
    with pytest.raises(ReportError, match=r"is a folder; name the file, such as --report .*report\.html"):
        Destination(tmp_path, None).check()
    with pytest.raises(ReportError, match=r"file is not a folder, so the report cannot be written there; .* --report$"):
        Destination(tmp_path / "file" / "out.html", None).check()
    with pytest.raises(ReportError, match=r"file is not a folder, .* another --report-pictures"):
        Destination(None, tmp_path / "file").check()
    with pytest.raises(ReportError, match="is not writable, so the report cannot be written there"):
        Destination(Path("/proc/out.html"), None).check()


@pytest.mark.parametrize("package", ["vl_convert", "jinja2"])
def test_missing_packages(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, one line says what to install; without a report nothing is asked for."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ReportError, match=r"not installed; run `pip install 'torch-diode\[report\]'`"):
        Destination(tmp_path / "out.html", None).check()
    Destination(None, None).check()


def test_another_file_is_not_replaced(evidence: Evidence, tmp_path: Path) -> None:
    """A page replaces an earlier one, and no file of another kind, such as a data set."""
    (tmp_path / "data.jsonl").write_text("{}\n")
    with pytest.raises(ReportError, match=r"data\.jsonl exists and is not a report; give another --report"):
        Destination(tmp_path / "data.jsonl", None).check()
    to = Destination(tmp_path / "out.html", None)
    write_report(evidence, to)
    to.check()


def test_page_and_pictures_of_one_name(tmp_path: Path) -> None:
    """One path cannot be both, which is said before any work is done."""
    with pytest.raises(ReportError, match=r"out cannot be both the page and the folder of its pictures; name two"):
        Destination(tmp_path / "out", tmp_path / "out").check()
