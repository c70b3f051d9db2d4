"""Files that appear whole or not at all, and exports to what is no plain file."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from diode_store.errors import ExportError
from diode_store.exchange.exporting import new_file, open_for_lines

if TYPE_CHECKING:
    from collections.abc import Callable


def export(path: Path, content: bytes, *, force: bool = False) -> None:
    """Write ``content`` as an export would."""
    with new_file(path, force=force) as beside, open_for_lines(beside, path.name) as stream:
        stream.write(content)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    """Both the folder's file and the link are what they were, with the new content."""
    target, link = tmp_path / "target.jsonl", tmp_path / "link.jsonl"
    target.write_bytes(b"old")
    link.symlink_to(target.name)
    export(link, b"new", force=True)
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.jsonl", "target.jsonl"]


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    """The file appears where the link leads."""
    link = tmp_path / "link.jsonl"
    link.symlink_to("target.jsonl")
    export(link, b"new")
    assert (link.is_symlink(), (tmp_path / "target.jsonl").read_bytes()) == (True, b"new")


def test_a_fifo_is_written_through(tmp_path: Path) -> None:
    """Its reader gets the export and it stays a FIFO."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    export(fifo, b"line", force=True)
    reader.join(10)
    assert read == [b"line"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_through() -> None:
    """What a device says is an error of the export; it stays a device."""
    with pytest.raises(ExportError, match="/dev/full cannot be written: No space left on device"):
        export(Path("/dev/full"), b"line", force=True)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_devices_too_are_not_written_by_accident() -> None:
    """Without --force nothing that is there is touched."""
    with pytest.raises(ExportError, match="exists already"):
        export(Path("/dev/null"), b"line")


def fail_on_the_way(path: Path) -> None:
    """Write a part and fail."""
    path.write_text("half")
    raise ExportError("no more")


def appear_meanwhile(path: Path) -> None:
    """Write all, while somebody else makes a file of that name."""
    path.write_text("ours")
    next(path.parent.glob("*")).with_name("out").write_text("theirs")


@pytest.mark.parametrize(("write", "left"), [(fail_on_the_way, []), (appear_meanwhile, ["theirs"])])
def test_an_export_that_fails_leaves_nothing_of_its_own(
    tmp_path: Path, write: Callable[[Path], None], left: list[str]
) -> None:
    """Neither a part under the real name nor one beside it, and nobody's file is lost."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ExportError), new_file(folder / "out") as beside:
        write(beside)
    assert [path.read_text() for path in folder.iterdir()] == left
