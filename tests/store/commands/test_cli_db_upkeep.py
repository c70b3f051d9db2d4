"""The commands of `diode db` that delete, go back and list, as people and scripts use them."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

import next_revision
import samples
from diode_store.commands.db_upkeep import span_of
from diode_store.warehouse.schema import HEAD_REVISION
from diode_store.warehouse.store import Store
from next_revision import NEXT

if TYPE_CHECKING:
    from conftest import RunCommand

DATA = Path(__file__).parents[2] / "data"
COMMANDS = (
    ("db", "upgrade"),
    ("db", "downgrade", "0001"),
    ("db", "check"),
    ("db", "stats"),
    ("db", "prune", "--replays"),
    ("db", "prune", "--replays", "--yes"),
    ("db", "tombstones"),
    ("db", "vacuum"),
    ("hardware", "list"),
    ("hardware", "alias", "h200", "x"),
    ("query", "SELECT 1"),
    ("fastest", "--hardware", "h200"),
    ("sync",),
    ("export", "-o", "{folder}/out.jsonl"),
    ("import", "{folder}/in.jsonl"),
    ("ingest", "--once", "--spool", "{folder}/spool"),
    ("train", "--hardware", "h200", "--output", "{folder}/model"),
)


@pytest.mark.parametrize(
    ("text", "days"), [("1d", 1), ("180d", 180), ("2w", 14), ("1y", 365), ("12h", 0.5), (" 3d ", 3)]
)
def test_spans_of_time(text: str, days: float) -> None:
    """Hours, days, weeks and years are understood."""
    assert span_of(text) == timedelta(days=days)


@pytest.mark.parametrize("text", ["180", "0d", "-1d", "1.5d", "d", "1 d", "1m", "1D", ""])
def test_no_span_of_time(text: str) -> None:
    """Whatever else is refused with examples; a month is none, and a wrong guess deletes data."""
    with pytest.raises(typer.BadParameter, match="is not a duration; write 12h, 180d, 26w or 1y"):
        span_of(text)


@pytest.mark.parametrize("text", ["1001y", "8760001h", "999999999y", "9" * 5000 + "d"])
def test_a_span_of_time_before_the_calendar(text: str) -> None:
    """It is a span of time, but nothing can be that old."""
    assert span_of("1000y") == span_of("8760000h") == timedelta(days=365_000)
    with pytest.raises(typer.BadParameter, match=f"^'{text}' is too long; give at most 1000y$"):
        span_of(text)


@pytest.mark.parametrize("args", COMMANDS, ids=" ".join)
def test_a_newer_schema_is_refused_by_every_command(
    diode: RunCommand, database_path: Path, tmp_path: Path, args: tuple[str, ...]
) -> None:
    """Whatever needs the warehouse refuses one that a newer release made, in one line, and changes nothing."""
    samples.sql(database_path, "UPDATE diode_schema_version SET version_num = '9999'")
    shutil.copy(DATA / "h200_excerpt.jsonl", tmp_path / "in.jsonl")
    (tmp_path / "spool").mkdir(mode=0o700)
    given = [arg.format(folder=tmp_path) for arg in args]
    ended = diode(*given, "--database", database_path)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"error: {database_path} has schema revision 9999, newer than {HEAD_REVISION}, the newest this torch-diode "
        "knows; upgrade it with `pip install --upgrade torch-diode`\n"
    )
    assert samples.sql(database_path, "SELECT count(*) FROM measurements") == [(0,)]


@pytest.fixture
def after_upgrade(diode: RunCommand, database_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a warehouse that was upgraded to a made-up revision after the newest."""
    next_revision.use(next_revision.folder_with_next(tmp_path), monkeypatch.setattr)
    assert diode("db", "upgrade", "--database", database_path).code == 0
    return database_path


def test_downgrade_says_what_it_loses(diode: RunCommand, after_upgrade: Path) -> None:
    """Without --yes nothing changes; with it, the older revision is there and every command says how to go on."""
    ended = diode("db", "downgrade", HEAD_REVISION, "--database", after_upgrade)
    assert ended.out == (
        f"would bring {after_upgrade} from revision {NEXT} back to {HEAD_REVISION}, and lose\n"
        f"  clocks (2 rows): {next_revision.LOSS}\n"
        "make a copy with `diode db backup` and do it with --yes\n"
    )
    assert diode("db", "check", "--database", after_upgrade).code == 0
    answer = json.loads(diode("db", "downgrade", HEAD_REVISION, "--yes", "--json", "--database", after_upgrade).out)
    assert [answer[name] for name in ("dry_run", "before", "after")] == [False, NEXT, HEAD_REVISION]
    assert "run `diode db upgrade --database" in diode("db", "stats", "--database", after_upgrade).err
    assert diode("db", "upgrade", "--database", after_upgrade).code == 0


@pytest.mark.parametrize("revision", ["0000", "9999", "base", "-1", "head", NEXT])
def test_downgrade_to_nothing_that_is_there(diode: RunCommand, after_upgrade: Path, revision: str) -> None:
    """Only an older revision that a release had is gone back to."""
    ended = diode("db", "downgrade", "--yes", "--database", after_upgrade, "--", revision)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        f"error: {after_upgrade} has schema revision {NEXT} and cannot go back to {revision}; "
        f"name {' or '.join(f'{number:04d}' for number in range(1, int(NEXT)))}\n"
    )


@pytest.mark.skipif(HEAD_REVISION != "0001", reason="the database has an older revision")
def test_downgrade_of_the_first_revision(diode: RunCommand, database_path: Path) -> None:
    """The first revision has none before it."""
    ended = diode("db", "downgrade", "0000", "--database", database_path)
    assert ended.err == f"error: {database_path} has schema revision 0001; there is none before it\n"


def test_downgrade_of_nothing(diode: RunCommand, tmp_path: Path) -> None:
    """A warehouse that is not there is not made."""
    path = tmp_path / "none.db"
    ended = diode("db", "downgrade", "0001", "--yes", "--database", path)
    assert ended == (1, "", f"error: {path} holds no warehouse; name another database\n")
    assert not path.exists()


def test_prune_asks_for_something(diode: RunCommand, database_path: Path) -> None:
    """A prune that names nothing is refused with what can be named, even with --all and --yes."""
    ended = diode("db", "prune", "--all", "--yes", "--database", database_path)
    assert ended.code == 2
    assert " ".join(ended.err.split()).endswith(
        "Name what goes: --superseded, --replays, --flagged, --older-than, --measured-before, --dataset or --hardware."
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--older-than", "180"), "'--older-than': '180' is not a duration; write 12h"),
        (("--older-than", ""), "'--older-than': it is empty"),
        (("--older-than", "5000y"), "'--older-than': '5000y' is too long; give at most 1000y"),
        (("--measured-before", "yesterday"), "'--measured-before': 'yesterday' is not a time; write 2026-11-20"),
        (("--measured-before", ""), "'--measured-before': it is empty"),
        (("--measured-before", "0001-01-01T00:00+14:00"), "is outside UTC's range of years; write 2026-11-20"),
        (("--keep", "0"), "Invalid value for '--keep': "),
        (("--measured-before", "2026-11-20", "--frobnicate"), "No such option: --frobnicate"),
    ],
)
def test_prune_bad_usage(diode: RunCommand, tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    """A mistyped option is bad usage, told by its name before the warehouse is even looked for; an empty one is too."""
    ended = diode("db", "prune", "--replays", *args, "--yes", "--database", tmp_path / "none.db")
    assert ended.code == 2
    assert said in " ".join(ended.err.split())


def test_prune_of_a_data_set_that_is_not_there(diode: RunCommand, store: Store, database_url: str) -> None:
    """It is said, with those that are there; no error, since the same command may have deleted it before."""
    store.write([samples.measurement(1, dataset="d"), samples.measurement(2, dataset="e")])
    prune = ("db", "prune", "--all", "--database", database_url, "--dataset")
    assert "data set" not in diode(*prune, "e", "--yes").err
    told = "no measurement belongs to the data set 'e'; there is: d\n"
    assert diode(*prune, "e") == (0, "nothing to delete\n", told)
    again = diode(*prune, "e", "--yes", "--json")
    assert (again.code, json.loads(again.out)["measurements"], again.err) == (0, 0, told)
    assert diode(*prune, "d", "--older-than", "1d") == (0, "nothing to delete\n", "")


def test_prune_by_hardware_and_data_set(diode: RunCommand, store: Store, database_url: str) -> None:
    """The hardware's alias is understood and said; the plan is a table; a data set goes as a whole with --all."""
    store.write([samples.measurement(number, dataset="d" if number % 2 else "e") for number in range(4)])
    store.write([samples.measurement(9, hardware=samples.H100, dataset="d")])
    ended = diode("db", "prune", "--hardware", "h200", "--dataset", "d", "--all", "--database", database_url)
    assert ended.err == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"
    header, row, said = ended.out.splitlines()
    assert header.split() == ["hardware", "dataset", "measurements", "timings", "oldest", "newest"]
    assert row.split()[:5] == ["NVIDIA", "H200", "d", "2", "6"]
    assert said == "would delete 2 measurements with 6 timings; do it with --yes"
    ended = diode("db", "prune", "--dataset", "d", "--yes", "--json", "--database", database_url)
    assert json.loads(ended.out) == {"dry_run": False, "measurements": 0, "timings": 0, "kept_as_last": 3}
    ended = diode("db", "prune", "--dataset", "d", "--all", "--yes", "--json", "--database", database_url)
    assert json.loads(ended.out)["measurements"] == 3
    assert store.counts()["measurements"] == 2


@pytest.mark.parametrize("name", ["downgrade", "prune", "tombstones", "vacuum", "backup"])
def test_help_has_an_example(diode: RunCommand, name: str) -> None:
    """Every command's help shows how to call it."""
    shown = diode("db", name, "--help")
    assert shown.code == 0
    assert f"Example: diode db {name}" in shown.out


def test_prune_of_nothing_lists_the_kinds(diode: RunCommand, database_path: Path) -> None:
    """Without any option it counts what each kind would delete, and deletes nothing."""
    with Store.open(str(database_path)) as store:
        store.write([samples.measurement(1), samples.measurement(2, is_replay=True)])
    ended = diode("db", "prune", "--all", "--json", "--database", database_path)
    assert ended.code == 0
    assert [(row["option"], row["measurements"]) for row in json.loads(ended.out)] == [
        ("--superseded", 0),
        ("--replays", 1),
        ("--flagged", 0),
    ]
