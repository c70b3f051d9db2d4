from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.command_line import cli
from diode_store.errors import FIRST_STEP, DiodeError
from diode_store.warehouse.database import describe, make_engine
from diode_store.warehouse.schema import HEAD_REVISION

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.warehouse.store import Store

DIODE = str(Path(sys.executable).parent / "diode")

THIRD_PARTY = {
    "good": "'''Say hello.\n\nMore.'''\nimport typer\napp = typer.Typer()\n@app.command()\ndef hi(name: str) -> None:\n"
    "    '''Say hello to NAME.'''\n    print('hello', name)\n",
    "broken": "'''Break.'''\nraise RuntimeError('no luck')\n",
    "no_app": '# comment\n\n"""Hold no application."""\napp = 5\n',
    "silent": "import os\n",
}


@pytest.fixture
def plugins(tmp_path: Path) -> dict[str, str]:
    """Install a distribution that adds commands, good and bad, and return the environment that finds it."""
    package = tmp_path / "site" / "third_party"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('importing me is slow and fails')\n")
    for name, source in THIRD_PARTY.items():
        (tmp_path / "site" / f"third_{name}.py").write_text(source)
    info = tmp_path / "site" / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    lines = [f"{name} = third_{name}:app" for name in THIRD_PARTY]
    lines += ["lost = third_lost:app", "inside = third_party.inside:app", "db = third_good:app"]
    (info / "entry_points.txt").write_text("[diode.commands]\n" + "\n".join(lines) + "\n")
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


def described(url: str) -> str:
    """Return what a command calls the database."""
    engine = make_engine(url)
    engine.dispose()
    return describe(engine)


def run(*args: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the installed `diode`."""
    return subprocess.run([DIODE, *args], capture_output=True, text=True, env=env, check=False)


def test_version(diode: RunCommand) -> None:
    """The version is the distribution's."""
    from importlib.metadata import version

    assert diode("--version") == (0, f"torch-diode {version('torch-diode')}\n", "")


def test_help_lists_every_command(diode: RunCommand) -> None:
    """Every entry point is listed with the first line of its module's docstring."""
    shown = diode("--help")
    lines = dict(
        line.split(None, 1) for line in shown.out.splitlines() if line.startswith("  ") and len(line.split()) > 1
    )
    assert shown.code == 0
    assert lines["db"] == "Create, upgrade, prune, copy and inspect the warehouse."
    assert lines["hardware"] == "List the measured hardware, and give it shorter names."
    assert set(cli.command_entries()) <= set(lines)


def test_help_starts_quickly() -> None:
    """`diode --help` imports no command and takes hardly more of a processor than the framework it is made with."""
    framework = min(_seconds(sys.executable, "-c", "import typer") for _ in range(3))
    assert min(_seconds(DIODE, "--help") for _ in range(3)) < 3 * framework  # 1.8; with SQLAlchemy it would be 4
    code = (
        "import sys; from diode_store.command_line.cli import main\n"
        "heavy = {'sqlalchemy', 'duckdb', 'pyarrow', 'torch', 'numpy', 'rich'}\n"
        "try: main(['--help'])\n"
        "finally: print(*sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stderr.split() == []


def _seconds(*command: str) -> float:
    """Return the processor time that a command takes, which other load on the machine does not change."""
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_unknown_command_gets_a_suggestion(diode: RunCommand) -> None:
    """A typing mistake is bad usage, and the command that was meant is named."""
    ended = diode("hardwear")
    assert ended.code == 2
    assert "No such command 'hardwear'. Did you mean 'hardware'?" in ended.err


@pytest.mark.long
def test_third_party_commands(plugins: dict[str, str]) -> None:
    """Another distribution's single command runs by its entry point's name; our own name stays ours."""
    assert run("good", "you", env=plugins).stdout == "hello you\n"
    assert "Usage: diode good [OPTIONS]" in run("good", "--help", env=plugins).stdout
    shown = run("--help", env=plugins)
    assert shown.returncode == 0
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    for line in ("good Say hello.", "broken Break.", "no_app Hold no application.", "inside", "silent", "lost"):
        assert line in lines
    assert "db Create, upgrade, prune, copy and inspect the warehouse." in lines


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "RuntimeError: no luck"),
        ("lost", "ModuleNotFoundError: No module named 'third_lost'"),
        ("inside", "RuntimeError: importing me is slow and fails"),
        ("no_app", "third_no_app:app is not a typer.Typer"),
        ("silent", "AttributeError: module 'third_silent' has no attribute 'app'"),
    ],
)
def test_broken_command_fails_alone(plugins: dict[str, str], name: str, reason: str) -> None:
    """A command that cannot be loaded is a one-line error that names its distribution; others go on."""
    ended = run(name, env=plugins)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"error: the command {name!r} cannot be loaded: {reason}; reinstall or remove third-party\n",
    )
    assert run("db", "--help", env=plugins).returncode == 0


def test_help_line_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module's help is read from its file, however its docstring is quoted."""
    texts = {
        'r"""One line."""\nx = 1': "One line.",
        "# c\n'''Two\nlines'''": "Two",
        '""": "no end': ': "no end',
        "x = 1": "",
        "#\n\n" * 300: "",
    }
    package = tmp_path / "quoted"
    package.mkdir()
    (package / "__init__.py").write_text('"""The package."""\n')
    for number, text in enumerate(texts):
        (package / f"m{number}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [cli.help_line(f"quoted.m{number}") for number in range(len(texts))] == list(texts.values())
    assert cli.help_line("quoted") == "The package."
    assert (cli.help_line("no_such_module"), cli.help_line("quoted.none"), cli.help_line("sys")) == ("", "", "")
    assert "quoted" not in sys.modules


def test_load_command_names_the_module() -> None:
    """An entry point without a distribution is named by its package."""
    with pytest.raises(DiodeError, match="remove no_such_module"):
        cli.load_command(EntryPoint("x", "no_such_module:app", cli.GROUP))


def test_upgrade_check_and_current(diode: RunCommand, any_new_url: str) -> None:
    """A warehouse is made, made again without harm, checked and named."""
    where = described(any_new_url)
    at = ("--database", any_new_url)
    first_step = f"the warehouse holds no measurements yet; {FIRST_STEP}\n"
    assert diode("db", "upgrade", *at) == (0, f"{where}: nothing -> revision {HEAD_REVISION}\n", first_step)
    assert diode("db", "upgrade", *at) == (0, f"{where} has revision {HEAD_REVISION} already\n", "")
    assert diode("db", "check", *at) == (0, f"{where} is sound\n", "")
    ended = diode("db", "current", *at)
    assert ended.out == f"database  {where}\nrevision  {HEAD_REVISION}\nnewest    {HEAD_REVISION}\n"


def test_upgrade_as_json(diode: RunCommand, any_new_url: str) -> None:
    """A script learns what an upgrade did."""
    where = described(any_new_url)
    answers = [json.loads(diode("db", "upgrade", "--database", any_new_url, "--json").out) for _ in range(2)]
    assert answers == [
        {"database": where, "before": None, "after": HEAD_REVISION},
        {"database": where, "before": HEAD_REVISION, "after": HEAD_REVISION},
    ]


def test_current_of_nothing(diode: RunCommand, tmp_path: Path) -> None:
    """Asking for the revision of a warehouse that is not there is answered, and makes nothing."""
    path = tmp_path / "none.db"
    answer = diode("db", "current", "--json", "--database", path)
    assert json.loads(answer.out) == {"database": str(path), "revision": None, "newest": HEAD_REVISION}
    assert not path.exists()


def test_stats(diode: RunCommand, any_store: Store, any_url: str) -> None:
    """Stats count every table and the failures, and give revision and size."""
    any_store.write([samples.measurement(1), samples.measurement(2)])
    answer = json.loads(diode("db", "stats", "--json", "--database", any_url).out)
    assert answer.pop("bytes") > 80_000
    assert answer == {
        "database": described(any_url),
        "revision": HEAD_REVISION,
        "hardware": 1,
        "environments": 1,
        "problems": 2,
        "configs": 3,
        "measurements": 2,
        "timings": 6,
        "failures": 2,
        "decisions": 0,
    }
    assert "\ntimings       6\n" in diode("db", "stats", "--database", any_url).out


@pytest.mark.parametrize("command", ["stats", "check"])
def test_no_warehouse_names_the_command(diode: RunCommand, tmp_path: Path, command: str) -> None:
    """What needs a warehouse says how to make one, in one line and with status 1."""
    path = tmp_path / "none.db"
    expected = f"error: {path} holds no warehouse yet; create it with `diode db upgrade --database {path}`\n"
    assert diode("db", command, "--database", path) == (1, "", expected)


def test_check_finds_a_change_by_hand(diode: RunCommand, database_path: Path) -> None:
    """A table that somebody changed is named, for people and for scripts."""
    connection = sqlite3.connect(database_path)
    connection.execute("DROP INDEX ix_problems_op_m_n_k")
    connection.close()
    ended = diode("db", "check", "--json", "--database", database_path)
    assert ended.code == 1
    assert "was changed by hand" in ended.err
    assert "ix_problems_op_m_n_k" in json.loads(ended.out)["differences"][0]


def test_check_finds_broken_references(diode: RunCommand, database_path: Path) -> None:
    """A row that refers to nothing is damage."""
    connection = sqlite3.connect(database_path)
    connection.execute("INSERT INTO hardware_aliases (alias, hardware_id) VALUES ('x', 17)")
    connection.commit()
    connection.close()
    ended = diode("db", "check", "--database", database_path)
    assert (ended.code, ended.out) == (1, "")
    assert "of hardware_aliases refers to a row of hardware that is not there); restore it from a backup" in ended.err


def test_hardware_list(diode: RunCommand, any_store: Store, any_url: str) -> None:
    """The list shows what was measured, with built-in and stored aliases; an empty one says how to fill it."""
    empty = diode("hardware", "list", "--database", any_url)
    assert (empty.code, empty.out) == (0, "")
    assert "no hardware yet" in empty.err
    assert json.loads(diode("hardware", "list", "--json", "--database", any_url).out) == []
    any_store.write([samples.measurement(1), samples.measurement(2)])
    diode("hardware", "alias", "h200", "Ours", "--database", any_url)
    assert json.loads(diode("hardware", "list", "--json", "--database", any_url).out) == [
        {
            "name": "NVIDIA H200",
            "vendor": "nvidia",
            "arch": "sm_90",
            "multiprocessors": 132,
            "memory_bytes": None,
            "memory_bandwidth_bytes_per_s": None,
            "aliases": ["h200", "ours"],
            "measurements": 2,
        }
    ]
    assert "h200, ours" in diode("hardware", "list", "--database", any_url).out


def test_hardware_alias(diode: RunCommand, any_store: Store, any_url: str) -> None:
    """Giving an alias says what it now means; a name that means nothing lists what there is."""
    any_store.write([samples.measurement()])
    ended = diode("hardware", "alias", "NVIDIA", "Box", "--database", any_url)
    assert ended == (0, "box now means NVIDIA H200 (sm_90, 132 multiprocessors)\n", "")
    ended = diode("hardware", "alias", "box", "other", "--json", "--database", any_url)
    assert json.loads(ended.out) == [{"alias": "other", "hardware": "NVIDIA H200"}]
    ended = diode("hardware", "alias", "h300", "x", "--database", any_url)
    known = "error: no hardware matches 'h300'; there is: NVIDIA H200 (sm_90, 132 multiprocessors); "
    remedy = "to add a GPU, run `diode tune` on it, or `diode-collect` for its timings alone\n"
    assert ended == (1, "", known + remedy)


@pytest.mark.parametrize("args", [("db",), ("hardware",), ("hardware", "alias", "h200"), ("db", "upgrade", "extra")])
def test_bad_usage(diode: RunCommand, args: tuple[str, ...]) -> None:
    """A command line that is not whole, or too long, is bad usage."""
    assert diode(*args).code == 2


@pytest.mark.parametrize(
    "args",
    [("db", name) for name in ("upgrade", "current", "check", "stats", "revision")]
    + [("hardware", "list"), ("hardware", "alias")],
)
def test_help_has_an_example(diode: RunCommand, args: tuple[str, ...]) -> None:
    """Every command's help shows how to call it."""
    shown = diode(*args, "--help")
    assert shown.code == 0
    assert f"Example: diode {' '.join(args)}" in shown.out


def test_revision_is_for_developers(diode: RunCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Writing a migration is not listed among the commands, and writes one beside the others."""
    import shutil

    from diode_store.warehouse import migrate

    assert "\n  revision" not in diode("db", "--help").out
    folder = tmp_path / "migrations"
    shutil.copytree(migrate.migrations_dir(), folder)
    monkeypatch.setattr(migrate, "migrations_dir", lambda: folder)
    written = folder / "versions" / f"{int(HEAD_REVISION) + 1:04d}_add_clocks.py"
    assert diode("db", "revision", "add clocks") == (0, f"{written}\n", "")
    assert "    pass\n" in written.read_text()


def test_hardware_list_reads_easily(diode: RunCommand, store: Store, database_url: str) -> None:
    """Memory has units and the headers are short, so that a device is one line of a narrow terminal."""
    h200 = replace(samples.H200, memory_bytes=141 * 10**9, memory_bandwidth_bytes_per_s=4_800 * 10**9)
    store.write([replace(samples.measurement(1), hardware=h200)])
    assert diode("hardware", "list", "--database", database_url).out == (
        "name         arch   SMs  memory  bandwidth  measured  aliases\n"
        "NVIDIA H200  sm_90  132  141 GB  4.8 TB/s          1  h200\n"
    )
