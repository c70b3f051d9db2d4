"""Strange entries in a spool, its quarantine, and folders of segments: none stops the others, and none is followed."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

import pytest
from daemon_process import ANY_PORT, Daemon
from daemon_samples import stored_in
from run_ingest import ingest, ingest_without_power
from spool_samples import segment_bytes

from diode_collectors.ingest.ingest import ingest_once
from diode_collectors.ingest.spool_checks import check
from diode_collectors.ingest.validate import validate
from diode_collectors.spool.backlog import Backlog
from diode_collectors.spool.files import folder_bytes
from diode_collectors.spool.reading import measurements_in
from diode_collectors.spool.spool import Spool
from diode_store.command_line.diagnosis import Setup
from strange import deep_folder, everything_in, strange_entries
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from diode_store.warehouse.store import Store

SUFFIXES = pytest.mark.parametrize("suffix", [".seg", ".open"])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return where the strange entries lead to; not there yet."""
    return tmp_path / "outside"


def good_segments(spool: Path) -> None:
    """Put good segments before, among and behind whatever else there is."""
    for number, name in enumerate(("!", "m", "~"), 1):
        (spool / f"{name}.seg").write_bytes(segment_bytes([number]))


def quarantine_of(spool: Path) -> Path:
    """Make a spool's quarantine."""
    folder = spool / "quarantine"
    folder.mkdir()
    return folder


@SUFFIXES
def test_a_pass_leaves_what_is_strange_and_tells_it(directory: Path, outside: Path, store: Store, suffix: str) -> None:
    """Every good record goes in once; an entry is ingested, in quarantine, or told; nothing outside is touched."""
    good_segments(directory)
    names = strange_entries(directory, outside, suffix)
    before = everything_in(outside)
    dry = ingest_once(directory, store, dry_run=True)
    real = ingest_once(directory, store)
    assert (dry.measurements, real.measurements) == (3, 3)
    left = {name for name in names if os.path.lexists(directory / name) and not name.startswith(".")}
    told = {line.partition(": cannot be read: ")[0].removeprefix(f"{directory}/") for line in real.unreadable}
    assert told == left
    assert ingest_once(directory, store).unreadable == real.unreadable
    spool = Spool(directory)
    status, waiting = spool.status(), Backlog(directory).look()
    assert sorted(status.unreadable) == sorted(real.unreadable)
    assert (waiting.segments, waiting.open_segments) == (status.segments, status.live_segments)
    assert {path.name for path in (*spool.sealed(), *spool.unsealed()) if validate(path).problems} == told
    if suffix == ".open":
        [why] = validate(directory / "hard-link.open", is_named=True).problems
        assert why.startswith("cannot be read: it is a hard link")
    assert everything_in(outside) == before


@SUFFIXES
def test_commands_go_on_beside_what_is_strange(
    directory: Path, outside: Path, where: Sequence[object], database_path: Path, suffix: str
) -> None:
    """They say one line an entry, without control characters, and end with 1 where something needs a look."""
    good_segments(directory)
    strange_entries(directory, outside, suffix)
    before = everything_in(outside)
    spool = where[:2]
    asked = [("--dry-run", *where), ("status", *spool), ("status", *spool, "--json"), ("validate", directory)]
    asked += [("validate", directory, "--json"), ("--once", *where), ("--once", "--json", *where)]
    for args in asked:
        ended = ingest(*args)
        assert ended.code == (0 if "status" in args else 1), args
        assert "\x1b" not in ended.out + ended.err
        if "--json" in args:
            assert json.loads(ended.out)
    assert sorted(stored_in(database_path)) == [1, 2, 3]
    assert everything_in(outside) == before


def test_the_doctor_looks_at_a_spool_with_what_is_strange(
    directory: Path, outside: Path, database_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finding is about the spool, and none about a check that failed."""
    good_segments(directory)
    strange_entries(directory, outside, ".seg")
    strange_entries(quarantine_of(directory), outside, ".bin")
    monkeypatch.setenv("DIODE_SPOOL", str(directory))
    found = [*check(Setup(str(database_path)))]
    assert {finding.subject for finding in found} <= {"spool", "daemon"}
    assert found[0].text.startswith(f"{directory}: writable, ")


def test_a_user_without_power_meets_what_is_strange(
    directory: Path, outside: Path, where: Sequence[object], database_path: Path
) -> None:
    """Files and folders that the user may not read are told like all others."""
    good_segments(directory)
    strange_entries(directory, outside, ".seg")
    ended = ingest_without_power("--once", "--json", *where)
    assert ended.code == 1
    closed = f"{directory}/closed.seg: cannot be read: Permission denied; check its owner and its mode"
    assert closed in json.loads(ended.out)["unreadable"]
    assert sorted(stored_in(database_path)) == [1, 2, 3]


def test_the_daemon_runs_beside_what_is_strange(directory: Path, outside: Path, database_path: Path) -> None:
    """It ingests the good ones, is ready to tell the others, and ends when asked."""
    good_segments(directory)
    strange_entries(directory, outside, ".seg")
    with Daemon(directory, database_path, *ANY_PORT) as daemon:
        eventually(lambda: sorted(stored_in(database_path)) == [1, 2, 3])
        daemon.wait_for(f'problem="{directory}/loop.seg: cannot be read: it is a link; move it away"')
        (directory / "later.seg").write_bytes(segment_bytes([4]))
        eventually(lambda: sorted(stored_in(database_path)) == [1, 2, 3, 4])


@pytest.mark.parametrize("suffix", [".seg", ".bin", ".seg.reason.json", ".bin.reason.json"])
def test_a_quarantine_is_listed_trimmed_and_written_beside_what_is_strange(
    directory: Path, outside: Path, store: Store, suffix: str
) -> None:
    """Unreadable files count as unknown and stay; new damage goes beside them, under a name that is free."""
    quarantine = quarantine_of(directory)
    strange_entries(quarantine, outside, suffix)
    before, within = everything_in(outside), everything_in(quarantine)
    spool = Spool(directory)
    assert spool.status().quarantined == sum(spool.status().quarantined_by_reason.values())
    assert len(spool.quarantined()) == spool.status().quarantined
    assert Backlog(directory).look().quarantine_files <= spool.status().quarantined
    spool.trim_quarantine(2**50)
    assert everything_in(quarantine) == within
    names = [path.name for path in quarantine.iterdir() if path.name.endswith(".seg")] or ["new.seg"]
    for name in names:
        (directory / name).write_bytes(b"damaged")
    assert ingest_once(directory, store).rejected == len([name for name in names if not name.startswith(".")])
    assert everything_in(outside) == before
    assert within.items() <= everything_in(quarantine).items()


def test_training_reads_the_good_segments_of_a_folder(
    directory: Path, outside: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading leaves out the others with a warning."""
    good_segments(directory)
    strange_entries(directory, outside, ".seg")
    with caplog.at_level(logging.WARNING):
        assert [measurement.uid[-1] for measurement in measurements_in(directory)] == [1, 2, 3]
    assert f"{directory}/loop.seg: cannot read the segment: Too many levels of symbolic links" in caplog.text


def test_a_quarantine_that_is_a_link_is_not_written(directory: Path, outside: Path, store: Store) -> None:
    """Damaged segments stay in the spool, and the others are ingested."""
    outside.mkdir()
    (directory / "quarantine").symlink_to(outside)
    (directory / "a.seg").write_bytes(b"damaged")
    (directory / "b.seg").write_bytes(segment_bytes([1]))
    with pytest.raises(Exception, match="quarantine: cannot move a segment into quarantine: it is a link"):
        ingest_once(directory, store)
    assert (list(outside.iterdir()), sorted(path.name for path in directory.iterdir())) == (
        [],
        ["a.seg", "quarantine"],
    )


def test_a_folder_deeper_than_python_can_recurse_is_no_trouble(directory: Path, store: Store) -> None:
    """Its bytes are counted like all others."""
    with deep_folder(directory / "deep"):
        (directory / "deep" / "d" / "d" / "file").write_bytes(b"123")
        (directory / "a.seg").write_bytes(segment_bytes([1]))
        assert folder_bytes(directory / "deep") == 3
        assert ingest_once(directory, store).measurements == 1


@pytest.mark.parametrize("command", ["--once", "--dry-run", "status"])
def test_a_spool_that_is_a_link_to_itself(
    tmp_path: Path, database_url: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line says so, whoever names it."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.setenv("DIODE_SPOOL", str(loop))
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)
    ended = ingest(command)
    assert ended.code == 1
    assert str(loop) in ended.err
    assert "Traceback" not in ended.err
