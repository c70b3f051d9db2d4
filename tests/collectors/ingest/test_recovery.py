"""The recipes of the page on disaster recovery, run as they stand there, each after a real loss."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bundled_sets import FIRST, SETS
from daemon_samples import PROGRAM
from spool_samples import sample, segment_bytes, stored

import samples
from diode_collectors.spool.quarantine import Quarantine
from diode_collectors.spool.spool import Spool, SpoolWriter
from diode_store.warehouse import migrate
from diode_store.warehouse.database import make_engine
from diode_store.warehouse.measurements import iter_measurements
from diode_store.warehouse.schema import HEAD_REVISION
from diode_store.warehouse.store import Store
from diode_store.wire.segments import Reason, SegmentReader, bytes_of_file
from lanes import long
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

    from diode_store.records import Measurement
    from postgres_server import PostgresServer

DOCS = Path(__file__).parents[3] / "docs"
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("backup.md", "recovery.md"))
RETENTION = (DOCS / "retention.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
BUNDLED = sum(data.measurements for data in SETS)


class Site:
    """The folders of an installation, and its warehouse."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "var" / "warehouse.db"
        self.spool = folder / "spool"
        self.backups = folder / "backups"
        for path in (self.database.parent, self.spool, self.backups):
            path.mkdir(mode=0o700)
        self.url = str(self.database)
        self.path = [str(Path(sys.executable).parent)]

    def recipe(self, title: str, number: int = 0) -> str:
        """Run a block of the page below a title, and return what it printed; it must end well."""
        return self.run(BLOCK.findall(SECTIONS[title])[number])

    def run(self, script: str) -> str:
        """Run a script as an operator would."""
        ended = self.try_run(script)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def try_run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script, however it ends."""
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([*self.path, os.environ["PATH"]]),
            "DIODE_DATABASE_URL": self.url,
            "DIODE_SPOOL": str(self.spool),
            "BACKUPS": str(self.backups),
        }
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    def create(self, measurements: Iterable[Measurement] = ()) -> None:
        """Make the warehouse and put measurements in."""
        engine = make_engine(self.url)
        migrate.upgrade(engine)
        with Store(engine) as store:
            store.write(measurements)

    def contents(self) -> list[Measurement]:
        """Return every measurement, by uid."""
        engine = make_engine(self.url)
        try:
            return sorted(iter_measurements(engine), key=lambda measurement: measurement.uid)
        finally:
            engine.dispose()

    def numbers(self) -> list[int]:
        """Return the numbers of the samples in the warehouse."""
        with Store.open(self.url) as store:
            return stored(store)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return an installation without a warehouse yet."""
    return Site(tmp_path)


def some(*numbers: int) -> list[Measurement]:
    """Return samples with failures, flags, replays and an odd host among them."""
    every: dict[str, Any] = samples.EVERY_FIELD
    made = [samples.measurement(number, host=f"größe-{number}") for number in numbers]
    return [*made, samples.measurement(900, **every), samples.measurement(901, flags=("throttled",))]


def test_every_block_is_run_here() -> None:
    """No recipe is on the page that no test of this file runs."""
    tested = Path(__file__).read_text(encoding="utf-8")
    for title, section in SECTIONS.items():
        for number in range(len(BLOCK.findall(section))):
            call = f'recipe("{title}", {number})' if number else f'recipe("{title}")'
            assert call in tested, call


def test_a_nightly_backup(site: Site) -> None:
    """The copy of today is made, one of three weeks ago goes, and one of yesterday stays."""
    site.create(some(1, 2))
    for age_days in (1, 21):
        old = site.backups / f"warehouse-{age_days}.db"
        old.write_bytes(b"")
        moment = time.time() - age_days * 86_400
        os.utime(old, (moment, moment))
    site.recipe("Back up SQLite")
    assert len(list(site.backups.glob("warehouse-20*.db"))) == 1
    assert [(site.backups / f"warehouse-{age}.db").exists() for age in (1, 21)] == [True, False]


@pytest.mark.long
def test_a_restored_backup(site: Site) -> None:
    """A lost database is what it was at the backup, whatever lies beside it, and the views follow it back."""
    site.create(some(1, 2))
    site.recipe("Back up SQLite")
    before = site.contents()
    with Store.open(site.url) as store:
        store.write(some(3, 4))
        # Still open, so that the -wal file is there, as after a crash.
        count = "diode query --json 'SELECT count(DISTINCT measurement_uid) AS n FROM observations'"
        assert '"n": 5' in site.run(count)
        assert Path(f"{site.url}-wal").stat().st_size > 0
        site.recipe("Restore SQLite")
    assert site.contents() == before
    assert '"n": 3' in site.run(count)
    with Store.open(site.url) as store:
        store.write([samples.measurement(7, runtimes=(1.5,))])
    assert '"n": 4' in site.run(count)
    assert "1.5" in site.run("diode query 'SELECT min(runtime_us) FROM fastest_configs'")
    assert (site.backups / "damaged" / "warehouse.db").exists()


@long
def test_postgresql_there_and_back(site: Site, postgres_server: PostgresServer) -> None:
    """A dump of one database makes another of the same contents, at the right revision, that takes new rows."""
    site.path.append(str(Path(postgres_server._program("pg_dump")).parent))
    site.url = postgres_server.create_database("before_the_fire")
    site.create(some(1, 2))
    before = site.contents()
    site.recipe("Back up PostgreSQL")
    postgres_server.drop_database("before_the_fire")
    site.url = postgres_server.create_database("after_the_fire")
    assert "is sound" in site.recipe("Restore PostgreSQL")
    assert site.contents() == before
    with Store.open(site.url) as store:
        assert store.write(some(1, 2, 3)).measurements == 1
    postgres_server.drop_database("after_the_fire")


@long
def test_a_rebuilt_cache(site: Site) -> None:
    """A cache of which a file is broken inside is made anew, and answers the same."""
    site.create(some(1, 2))
    question = "diode query --no-sync 'SELECT count(*), sum(runtime_us) FROM observations'"
    site.run("diode sync")
    before = site.run(question)
    [file] = site.database.with_suffix(".cache").glob("recent-*.duckdb")
    file.write_bytes(b"\0" * file.stat().st_size)
    assert site.try_run(question).returncode == 1
    assert "copied" in site.recipe("Rebuild the cache")
    assert site.run(question) == before


@pytest.mark.long
def test_the_cache_answers_for_a_lost_database(site: Site) -> None:
    """While the database is away, what was synced can still be asked."""
    site.create(some(1, 2))
    site.run("diode sync")
    site.database.unlink()
    assert site.run("diode query --no-sync 'SELECT count(*) FROM observations'").split() == ["count_star()", "9"]


@long
def test_the_cache_holds_more_than_the_backup(site: Site) -> None:
    """A copy of the cache shows what came in after the backup, even when the cache itself has followed the database."""
    site.create(some(1))
    site.recipe("Back up SQLite")
    with Store.open(site.url) as store:
        store.write(some(2))
    site.run("diode sync")
    assert site.recipe("What the cache still holds").split() == ["n", "3"]
    site.recipe("Restore SQLite")
    assert site.run("diode query 'SELECT count(DISTINCT measurement_uid) AS n FROM observations'").split() == ["n", "2"]
    asked = BLOCK.findall(SECTIONS["What the cache still holds"])[0].splitlines()[1]
    assert site.run(asked).split() == ["n", "3"]


def test_what_was_in_quarantine(site: Site) -> None:
    """Records that an older version could not read are ingested, and nothing is left in the quarantine."""
    site.create()
    segment = site.spool / "a.seg"
    segment.write_bytes(segment_bytes([1, 2, 3]))
    with segment.open("rb") as file:
        for frame in SegmentReader(bytes_of_file(file.fileno()), sealed=True).frames():
            Quarantine(site.spool / "quarantine").put_frame(segment, frame, Reason.NEWER_RECORD, "too new")
    segment.unlink()
    assert len(list((site.spool / "quarantine").glob("*.seg"))) == 3
    site.recipe("Put back what is in quarantine")
    assert sorted(site.numbers()) == [1, 2, 3]
    assert list((site.spool / "quarantine").iterdir()) == []


@long
def test_a_database_built_again(site: Site) -> None:
    """From overlapping exports and segments comes what was lost, each measurement once and equal in every field."""
    site.create(some(1, 2))
    for number in (1, 2):
        site.run(f'diode export -o "$BACKUPS/export-{number}.jsonl.gz"')
    before = site.contents()
    with SpoolWriter(site.backups) as writer:
        for number in (5, 6):
            writer.append(sample(number))
    for path in site.database.parent.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    site.recipe("Rebuild a lost database")
    found = site.contents()
    by_uid = {measurement.uid: measurement for measurement in found}
    assert len(found) == len(by_uid) == len(before) + 2 + BUNDLED
    assert by_uid[before[0].uid].hardware.memory_bytes == 150_109_880_320  # the bundled data knows more of it
    assert [replace(by_uid[m.uid], hardware=m.hardware) for m in before] == before


@long
def test_room_on_a_full_disk(site: Site) -> None:
    """Cache and replays go, the file shrinks, and what is trusted is still there and is asked as before."""
    site.create([samples.measurement(n, is_replay=n > 1, problem=samples.matmul(8, 8, 8)) for n in range(1, 4000)])
    site.run("diode sync")
    before = site.database.stat().st_size
    site.recipe("A full disk")
    assert site.numbers() == [1]
    assert site.database.stat().st_size < before / 2
    assert not site.database.with_suffix(".cache").exists()
    assert "10.5" in site.run("diode query 'SELECT runtime_us FROM fastest_configs'")


@long
def test_a_weekly_check(site: Site) -> None:
    """A sound database is called so; one that is damaged is named with what to do."""
    site.create(some(1))
    assert site.recipe("A corrupt database") == f"{site.url} is sound\n"
    damage(site.database)
    ended = site.try_run(BLOCK.findall(SECTIONS["A corrupt database"])[0])
    assert ended.returncode == 1
    assert "restore it from a backup" in ended.stderr


def damage(path: Path) -> None:
    """Overwrite a page that holds timings, as a failing disk does."""
    [(page,)] = samples.sql(path, "SELECT max(pageno) FROM dbstat WHERE name = 'timings' AND pagetype = 'leaf'")
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)


@long
def test_a_database_replaced_under_a_daemon(site: Site) -> None:
    """A running daemon goes over to the restored file by itself, and loses nothing that it had taken on."""
    site.create()
    site.recipe("Back up SQLite")
    command = [PROGRAM, "run", "--spool", site.spool, "--database", site.url, "--poll-interval", "0.02"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
        try:
            put(site, 1)
            eventually(lambda: site.numbers() == [1])
            site.recipe("Restore SQLite")
            assert site.numbers() == []
            put(site, 2)
            eventually(lambda: site.numbers() == [2])
            eventually(lambda: Spool(site.spool).sealed() == [])
        finally:
            daemon.terminate()
    assert daemon.returncode == 0


def put(site: Site, number: int) -> None:
    """Put a segment into the spool, whole."""
    beside = site.spool / "new.tmp"
    beside.write_bytes(segment_bytes([number]))
    beside.replace(site.spool / f"{number}.seg")


@long
@pytest.mark.skipif(HEAD_REVISION == "0001", reason="there is no older revision to go back to")
def test_an_upgrade_taken_back(site: Site) -> None:
    """The first line changes nothing; after the second an older torch-diode finds its revision."""
    site.create(some(1))
    lines = BLOCK.findall(SECTIONS["An upgrade went wrong"])[0].splitlines()
    assert "and lose" in site.run(lines[0])
    assert "is sound" in site.run("diode db check")
    site.recipe("An upgrade went wrong")
    assert "revision  0001" in site.run("diode db current")


@long
def test_too_much_was_deleted(site: Site) -> None:
    """A bundled data set that was pruned away is not brought back until its tombstones are forgotten."""
    site.create()
    site.run(f"diode-ingest --once --bundled && diode db prune --dataset {FIRST.name} --all --yes")
    site.run("diode-ingest --once --bundled")
    assert len(site.contents()) == BUNDLED - FIRST.measurements
    site.recipe("Too much was deleted")
    assert len(site.contents()) == BUNDLED


@long
def test_the_commands_of_retention(site: Site) -> None:
    """The commands of the page on retention run as they stand there, and so does the timer's line."""
    site.create(some(1, 2))
    again = {"problem": samples.matmul(8, 8, 8), "sweep_id": "new"}
    with Store.open(site.url) as store:
        store.write([samples.measurement(5, **{**again, "sweep_id": "old"}), samples.measurement(6, **again)])
    prune, decisions, supersede = BLOCK.findall(RETENTION)
    assert site.run(prune).count("nothing to delete") == 2
    assert site.run(decisions).count("nothing to delete") == 1
    said = site.run(f"OLD_SWEEP=old NEW_SWEEP=new\n{supersede}").splitlines()
    assert said[0].startswith("would supersede 1 measurement")
    assert said[1].startswith("superseded 1 measurement")
    assert said[-1].startswith("would delete 1 measurement with 3 timings; 1 other kept")
    [line] = re.findall(r"^ExecStart=/usr/local/bin/(.*)$", RETENTION, re.MULTILINE)
    assert site.run(line).startswith("deleted 0 measurements")
    for scheduled in re.findall(r"^[\d*]+ +[\d*]+ +\* +\* +[\d*] +(diode .*)$", RETENTION, re.MULTILINE):
        site.run(scheduled)
