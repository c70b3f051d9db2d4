"""`diode report`: real files over a real warehouse."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import samples
from diode_explorer import needed
from diode_explorer.commands.report import app
from diode_store.warehouse.store import Store
from lanes import long

if TYPE_CHECKING:
    from click.testing import Result

HOSTILE = "<script>alert('1')</script>"


@pytest.fixture
def warehouse(database_path: Path) -> str:
    """Return a warehouse of two problems, one measured on a host whose name is a script."""
    shapes = samples.matmul(64, 128, 256), samples.matmul(512, 512, 512)
    with Store.open(str(database_path)) as store:
        store.write(
            [samples.measurement(n, problem=shape, host=HOSTILE if n else "a") for n, shape in enumerate(shapes)]
        )
    return str(database_path)


def run(database: str, output: Path, *options: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(app, ["--database", database, "-o", str(output), *options])


def read(folder: Path) -> dict[str, str]:
    """Return the files of a folder."""
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.long
def test_two_reports_are_the_same(warehouse: str, tmp_path: Path) -> None:
    """To the last byte, though they were made one after the other."""
    results = [run(warehouse, tmp_path / name) for name in ("one", "two")]
    assert [result.exit_code for result in results] == [0, 0], results[0].output
    assert read(tmp_path / "one") == read(tmp_path / "two")
    assert "index.html" in read(tmp_path / "one")


@pytest.mark.long
def test_sigterm_ends_it_with_its_processes(warehouse: str, tmp_path: Path) -> None:
    """It exits as after Ctrl-C, and what it had started is gone."""
    program = Path(sys.executable).with_name("diode")
    command = [program, "report", "--database", warehouse, "-o", tmp_path / "out"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not (children := children_of(process.pid)):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[1]
    assert (process.returncode, said) == (130, "")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert not (tmp_path / "out").exists()


def children_of(pid: int) -> list[str]:
    """Return the ids of the processes that a process has started."""
    found: list[str] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += path.read_text().split()
    return found


@pytest.mark.long
def test_a_page_needs_nothing_but_itself(warehouse: str, tmp_path: Path) -> None:
    """No script, no address of another host; every link leads to a file that is there; names are text."""
    run(warehouse, tmp_path / "out")
    pages = read(tmp_path / "out")
    for text in pages.values():
        assert "<script" not in text
        found = re.findall(r'(?:src|srcset|href)="([^"]*)"', text)
        assert [each for each in found if not each.startswith(("data:", "#")) and each not in pages] == []
        assert "default-src 'none'" in text
    assert "&lt;script&gt;" in pages["index.html"]
    assert any(name.startswith("problem-") for name in pages)


@pytest.mark.long
def test_problems_are_those_that_are_linked(warehouse: str, tmp_path: Path) -> None:
    """As many as are asked for; a picture is there for light and for dark."""
    run(warehouse, tmp_path / "out", "--problems", "1")
    problems = {name: text for name, text in read(tmp_path / "out").items() if name.startswith("problem-")}
    assert len(problems) == 1
    ((_, text),) = problems.items()
    pictures = re.findall(
        r'<source media="\(prefers-color-scheme: dark\)" srcset="(data:[^"]+)"><img[^>]*src="([^"]+)"', text
    )
    assert len(pictures) == 1
    assert pictures[0][0] != pictures[0][1]


@pytest.mark.long
def test_a_page_that_is_asked_for(warehouse: str, tmp_path: Path) -> None:
    """By its address on the site."""
    result = run(warehouse, tmp_path / "out", "--problems", "0", "--page", "/problem?m=512&k=512", "--json")
    assert result.exit_code == 0
    (name,) = (name for name in read(tmp_path / "out") if name.startswith("problem-512"))
    assert name in result.output
    assert "512x512x512" in read(tmp_path / "out")[name]
    assert "64x128x256" not in read(tmp_path / "out")[name]


@pytest.mark.long
def test_a_further_state_of_a_page_is_a_file_of_its_own(warehouse: str, tmp_path: Path) -> None:
    """It does not take the place of the page as it is, not even with a single filter."""
    device = f"device={samples.measurement(0).hardware.name.replace(' ', '+')}"
    more = ("--page", "/overview?machine=a", "--page", f"/coverage?{device}")
    assert run(warehouse, tmp_path / "plain", "--problems", "0").exit_code == 0
    assert run(warehouse, tmp_path / "more", "--problems", "0", *more).exit_code == 0
    plain, found = read(tmp_path / "plain"), read(tmp_path / "more")
    assert len(found) == len(plain) + len(more) // 2
    assert "&lt;script&gt;" in found["index.html"]
    assert found["coverage.html"].count("<a ") == plain["coverage.html"].count("<a ")


@long
def test_a_report_takes_the_place_of_one(warehouse: str, tmp_path: Path) -> None:
    """Its pages that are no more are gone; what is no page of a report stays, and is never replaced."""
    folder = tmp_path / "out"
    run(warehouse, folder)
    (folder / "notes.html").write_text("<p>mine")
    before = read(folder)
    assert run(warehouse, folder, "--problems", "0").exit_code == 0
    after = read(folder)
    gone = {name for name in before if name not in after}
    assert {name.partition("-")[0] for name in gone} <= {"problem", "model"}
    assert any(name.startswith("problem-") for name in gone)
    assert after["notes.html"] == "<p>mine"
    (folder / "index.html").write_text("mine as well")
    result = run(warehouse, folder)
    assert "index.html exists and is not a page of a report" in str(result.exception)
    assert (folder / "index.html").read_text() == "mine as well"


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--page", "/nope"), "there is no such page; the pages are /overview"),
        (("--page", "/intake"), "there is no such page"),
        (("--page", "/problem?x=1"), "unknown parameter 'x'"),
        (("--page", "/problem?problem=00"), "no such problem was timed with these filters"),
        (("--hardware", "nope"), "no hardware matches 'nope'"),
    ],
)
def test_what_makes_no_sense(warehouse: str, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """One line that says what, and nothing is written."""
    result = run(warehouse, tmp_path / "out", *options)
    assert result.exit_code == 1
    assert said in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be(warehouse: str, tmp_path: Path) -> None:
    """A file in its place is said before any work is done."""
    (tmp_path / "out").write_text("")
    assert "is a file; name a folder" in str(run(warehouse, tmp_path / "out").exception)


def test_without_the_extra(warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setattr(needed, "find_spec", lambda _name: None)
    assert "pip install 'torch-diode[web]'" in str(run(warehouse, tmp_path / "out").exception)
