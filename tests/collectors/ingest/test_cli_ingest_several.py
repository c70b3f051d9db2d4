from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from daemon_samples import stored_in
from run_ingest import closed, ingest, ingest_without_power
from spool_samples import segment_bytes

from diode_collectors.spool.spool import Spool
from diode_store.system.resources import bundled_data_dir

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def spools(tmp_path: Path) -> tuple[Path, Path]:
    """Return two spools: a record waits in each."""
    for number, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.seg").write_bytes(segment_bytes([number]))
    return tmp_path / "a", tmp_path / "b"


def cannot_be_read(spool: Path) -> None:
    """Put a file where a spool was."""
    shutil.rmtree(spool)
    spool.touch()


@pytest.fixture
def both(spools: tuple[Path, Path], database_path: Path) -> Sequence[object]:
    """Return the options that name both spools and a warehouse."""
    return ("--spool", spools[0], "--spool", spools[1], "--database", database_path)


def test_the_total_says_how_many_failed(spools: tuple[Path, Path], both: Sequence[object]) -> None:
    """And never that nothing waits, for nobody looked."""
    cannot_be_read(spools[0])
    some = "in all: 1 new, 0 already stored; 2 new timings, 1 segment done; 1 spool failed"
    assert ingest("--once", *both).out.splitlines()[-1] == some
    none = "in all: 0 new, 0 already stored; 0 new timings, 0 segments done; 1 spool failed"
    assert ingest("--once", *both).out.splitlines()[-1] == none
    cannot_be_read(spools[1])
    assert ingest("--once", *both).out == none.replace("1 spool", "2 spools") + "\n"


def test_a_spool_of_a_running_daemon_is_left_to_it(
    spools: tuple[Path, Path], both: Sequence[object], database_path: Path
) -> None:
    """The others are ingested; that one is told in its place, with the pid in JSON too, and nothing has failed."""
    with Spool(spools[0]).lock():
        ended = ingest("--once", *both)
        found = json.loads(ingest("--once", "--json", *both).out)
    running = f"{spools[0]}: diode-ingest is running on this spool (pid {os.getpid()}) and "
    running += f"moves its records into its own warehouse; this command wrote none of them to {database_path}"
    new = "1 new, 0 already stored; 2 new timings, 1 segment done"
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [running, f"{spools[1]}: {new}", f"in all: {new}"]
    assert [each.get("ingest_pid") for each in found["spools"]] == [os.getpid(), None]


@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_a_group_that_does_not_exist(both: Sequence[object], database_path: Path, extra: Sequence[str]) -> None:
    """It is told once, as by the daemon, and no spool is touched."""
    ended = ingest("--once", *extra, *both, "--group", "no-such-group")
    assert ended == (
        1,
        "",
        "error: --group: there is no group 'no-such-group'; create it with `groupadd no-such-group`\n",
    )
    assert stored_in(database_path) == []


@pytest.mark.parametrize("mode", ["--once", "--dry-run"])
def test_a_spool_that_may_not_be_read(spools: tuple[Path, Path], both: Sequence[object], mode: str) -> None:
    """It is an error of that spool, in one line with its remedy; the other one is read."""
    with closed(spools[0]):
        ended = ingest_without_power(mode, "--json", *both)
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert ended.err.startswith(f"error: {spools[0]}")
    assert "Permission denied; check the path and its permissions" in ended.err
    report = json.loads(ended.out)
    assert (report["measurements"], "error" in report["spools"][0]) == (1, True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("mode", ["--once", "--dry-run", "status"])
def test_the_only_spool_may_not_be_read(spools: tuple[Path, Path], both: Sequence[object], mode: str) -> None:
    """The line is all there is."""
    options = both[:2] if mode == "status" else (*both[:2], *both[4:])
    with closed(spools[0]):
        ended = ingest_without_power(mode, *options)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "Permission denied; check the path and its permissions" in ended.err


def test_the_status_of_a_spool_that_may_not_be_read(spools: tuple[Path, Path]) -> None:
    """It is an error; the other spool is shown."""
    with closed(spools[0]):
        ended = ingest_without_power("status", "--json", "--spool", spools[0], "--spool", spools[1])
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert json.loads(ended.out)["segments"] == 1


def test_a_dry_run_counts_what_ships_once(spools: tuple[Path, Path], both: Sequence[object]) -> None:
    """A shipped segment whose name the spool has is not copied there, so what waits is counted alone."""
    ships = Spool(bundled_data_dir()).sealed()
    for number, shipped in enumerate(ships, 7):
        (spools[0] / shipped.name).write_bytes(segment_bytes([number]))
    said = [ingest(mode, "--bundled", *both).out.replace("dry run: ", "") for mode in ("--dry-run", "--once")]
    assert said[0] == said[1]
    waiting = 2 + len(ships)
    told = f"in all: {waiting} new, 0 already stored; {2 * waiting} new timings, {waiting} segments done"
    assert said[0].splitlines()[-1] == told
