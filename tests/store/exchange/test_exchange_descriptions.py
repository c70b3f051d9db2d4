"""Files given by name, and what a person says about them."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from diode_store.errors import ImportFileError
from diode_store.exchange.descriptions import environment_file, hardware_file, time_of
from diode_store.exchange.inputs import open_binary
from diode_store.records import (
    Environment,
    Hardware,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_files_are_opened_by_what_they_hold(tmp_path: Path) -> None:
    """Gzip is told by its first bytes, whatever the name."""
    (tmp_path / "packed").write_bytes(gzip.compress(b"x\n"))
    (tmp_path / "plain.gz").write_bytes(b"y\n")
    (tmp_path / "empty").write_bytes(b"")
    found = []
    for name in ("packed", "plain.gz", "empty"):
        with open_binary(str(tmp_path / name)) as stream:
            found.append(stream.read())
    assert found == [b"x\n", b"y\n", b""]


@pytest.mark.parametrize("name", ["missing.jsonl", "", "folder"])
def test_files_that_cannot_be_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's name and the system's reason make one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ImportFileError, match=f"^{name}: .*; check the file's name$"), open_binary(name):
        pass


def test_hardware_file(tmp_path: Path) -> None:
    """A device nobody knows is described by a JSON object."""
    path = tmp_path / "hardware.json"
    path.write_text('{"vendor": "acme", "name": "Anvil 9", "arch": "av9", "multiprocessors": 12, "l2_bytes": 1024}')
    assert hardware_file(path) == Hardware("acme", "Anvil 9", "av9", 12, l2_bytes=1024)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"vendor": "acme"}', "no name, arch, multiprocessors"),
        ('{"vendor": "a", "name": "b", "arch": "c", "multiprocessors": 0}', "multiprocessors must be a positive"),
        ('{"vendor": "a", "name": "", "arch": "c", "multiprocessors": 1}', "name must be text"),
        ('{"vendor": "a", "name": "b", "arch": "c", "multiprocessors": 1, "sms": 3}', "unknown fields sms"),
        ("[1]", "must hold a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_bad_hardware_files(tmp_path: Path, content: str, expected: str) -> None:
    """Each mistake names the file and what is wrong."""
    path = tmp_path / "hardware.json"
    path.write_text(content)
    with pytest.raises(ImportFileError, match=expected) as raised:
        hardware_file(path)
    assert str(raised.value).startswith(str(path))


def test_environment_file(tmp_path: Path) -> None:
    """What the file does not name stays unknown."""
    path = tmp_path / "environment.json"
    path.write_text('{"torch": "2.11.0", "template_hashes": {"triton::mm": "abc"}}')
    assert environment_file(path) == Environment(torch="2.11.0", template_hashes={"triton::mm": "abc"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"torch": 2}', "torch must be text"),
        ('{"template_hashes": [1]}', "template_hashes must be an object"),
        ('{"cuda": "13"}', "unknown fields cuda; known: torch, triton, compute, driver, python, os, template_hashes"),
    ],
)
def test_bad_environment_files(tmp_path: Path, content: str, expected: str) -> None:
    """Each mistake names the file and what is wrong."""
    path = tmp_path / "environment.json"
    path.write_text(content)
    with pytest.raises(ImportFileError, match=expected):
        environment_file(path)


def test_option_files_that_are_missing(tmp_path: Path) -> None:
    """A name that was mistyped is said to be that."""
    with pytest.raises(ImportFileError, match=r"nowhere\.json: No such file or directory; check the file's name"):
        environment_file(tmp_path / "nowhere.json")


def test_times_on_the_command_line() -> None:
    """A date means midnight UTC; a zone is heeded; anything else is refused."""
    assert time_of("2026-11-20") == datetime(2026, 11, 20, tzinfo=UTC)
    assert time_of("2026-11-20T12:30:00+01:00") == datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
    with pytest.raises(ImportFileError, match="'soon' is not a time"):
        time_of("soon")
