"""`diode import` and `diode export`, and that what goes out comes back the same."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from diode_store import importing
from diode_store.errors import ExportError
from diode_store.exporting import new_file
from diode_store.measurements import iter_measurements
from diode_store.records import (
    Environment,
    Measurement,
    Outcome,
    Problem,
    Source,
    TensorSpec,
    Timing,
    TimingMethod,
)
from diode_store.store import Store
from samples import EVERY_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import MakeMeasurement, RunCommand

H200 = ("--hardware", "h200")
MATCHED = "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"


@pytest.fixture(autouse=True)
def _default_database(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command find the test's warehouse."""
    monkeypatch.setenv("DIODE_DATABASE_URL", database_url)


@pytest.fixture
def another_database(_template_database: Path, tmp_path: Path) -> str:
    """Return the path of a second empty warehouse."""
    return str(shutil.copy(_template_database, tmp_path / "another.db"))


def content(url: str) -> list[Measurement]:
    """Return everything a warehouse holds, timings sorted by config."""
    with Store.open(url) as store:
        found = iter_measurements(store.engine)
        return [replace(m, timings=tuple(sorted(m.timings, key=lambda t: t.config.key))) for m in found]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a jsonl file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def sorted_choices(line: dict[str, Any]) -> dict[str, Any]:
    """Return a line with its choices in an order that no database decides."""
    return {**line, "choices": sorted(line["choices"], key=json.dumps)}


def test_import_says_what_it_added(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """The device that was matched, then counts; and the warehouse holds them."""
    assert diode("import", *H200, str(jsonl_path)) == (0, "6 measurements with 79 timings added\n", MATCHED)
    counts = store.counts()
    assert (counts["measurements"], counts["timings"], counts["failures"]) == (6, 79, 10)


def test_import_twice_adds_nothing(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """The second time it says that everything was there."""
    diode("import", *H200, str(jsonl_path))
    again = diode("import", *H200, str(jsonl_path))
    assert (again.code, again.out) == (0, "nothing new: all 6 measurements were there already\n")
    assert store.counts()["timings"] == 79


def test_import_of_some_that_are_new(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """Old and new are counted apart, also within one run."""
    lines = jsonl_path.read_text().splitlines()
    part = tmp_path / "part.jsonl"
    part.write_text("\n".join(lines[:2]))
    diode("import", *H200, str(part))
    result = diode("import", *H200, str(jsonl_path), str(jsonl_path), "--json")
    report = json.loads(result.out)
    assert (report["measurements"], report["duplicates"], report["bad"]) == (4, 8, [])


def test_import_fills_in_what_is_known_of_the_device(diode: RunCommand, jsonl_path: Path, database_url: str) -> None:
    """A device we know brings its attributes, and the options the rest."""
    options = (
        "--measured-at",
        "2026-11-20",
        "--dataset",
        "excerpt",
        "--licence",
        "Apache-2.0",
        "--search-space",
        "SAMPLE",
    )
    environment = jsonl_path.with_name("environment.json")
    environment.write_text('{"torch": "2.11.0", "triton": "3.6.0"}')
    diode("import", *H200, *options, "--environment", str(environment), str(jsonl_path))
    first = content(database_url)[0]
    assert (first.hardware.name, first.hardware.l2_bytes) == ("NVIDIA H200", 60 * 2**20)
    assert first.hardware.memory_bandwidth_bytes_per_s == 4_800_000_000_000
    assert first.environment == Environment(torch="2.11.0", triton="3.6.0")
    assert (first.measured_at and first.measured_at.isoformat()) == "2026-11-20T00:00:00+00:00"
    assert (first.dataset, first.licence, first.search_space) == ("excerpt", "Apache-2.0", "SAMPLE")
    assert first.source is Source.IMPORT


def test_import_on_a_device_nobody_knows(diode: RunCommand, jsonl_path: Path, database_url: str) -> None:
    """Its attributes come from a file; afterwards its name is enough."""
    device = jsonl_path.with_name("anvil.json")
    device.write_text('{"vendor": "acme", "name": "Anvil 9", "arch": "av9", "multiprocessors": 12}')
    assert diode("import", "--hardware-file", str(device), str(jsonl_path)).code == 0
    assert diode("import", "--hardware", "anvil 9", str(jsonl_path)).out.startswith("nothing new")
    assert {measurement.hardware.name for measurement in content(database_url)} == {"Anvil 9"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "1: the row names no hardware; give --hardware NAME"),
        (
            ("--hardware", "abacus"),
            "error: unknown hardware 'abacus'; describe it (vendor, name, arch, multiprocessors) as an object in",
        ),
        (("--hardware", "a100"), "error: 'a100' could be any of: NVIDIA A100 80GB PCIe (sm_80, 108 multiprocessors), "),
        (("--hardware-file", "missing.json"), "error: missing.json: No such file or directory"),
        ((*H200, "--environment", "missing.json"), "error: missing.json: No such file or directory"),
        ((*H200, "--measured-at", "soon"), "error: 'soon' is no time"),
    ],
)
def test_import_with_options_that_do_not_fit(
    diode: RunCommand, jsonl_path: Path, store: Store, options: tuple[str, ...], expected: str
) -> None:
    """One line says what is wrong and what to give instead; nothing is written."""
    result = diode("import", *options, str(jsonl_path))
    assert (result.code, expected in result.err) == (1, True)
    assert store.counts()["measurements"] == 0


def test_import_bad_usage(diode: RunCommand, jsonl_path: Path) -> None:
    """Options that exclude each other and formats we do not have exit with 2."""
    assert diode("import", *H200, "--hardware-file", "x.json", str(jsonl_path)).code == 2
    unknown = diode("import", *H200, "--format", "morse", str(jsonl_path))
    assert unknown.code == 2
    assert "'morse' is not one of 'auto', 'jsonl'" in " ".join(unknown.err.split())


def test_import_keeps_the_good_lines(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """Each bad line is named by file and number, the rest is kept, and the status is 1."""
    lines = jsonl_path.read_text().splitlines()
    lines[1] = lines[1][:100]
    lines[3] = lines[3].replace('"runtime_us": ', '"runtime_us":').replace('"runtime_us":', '"runtime_us":-', 1)
    lines.insert(5, '{"op": "mm"}')
    jsonl_path.write_text("\n".join(lines))
    result = diode("import", *H200, str(jsonl_path))
    matched, *bad, last = result.err.splitlines()
    assert (result.code, matched + "\n") == (1, MATCHED)
    assert [line.partition(": ")[0] for line in bad] == [f"{jsonl_path}:{number}" for number in (2, 4, 6)]
    assert "malformed JSON" in bad[0]
    assert "choices[0].runtime_us must be" in bad[1]
    assert bad[2].endswith("no dtype, B, M, N, K, layout, inputs, choices; add what is missing or remove the line")
    assert last == "error: 3 bad lines; the good ones are in the warehouse; mend and import again"
    assert result.out.startswith("4 measurements with ")
    assert store.counts()["measurements"] == 4


def test_import_of_bad_lines_as_json(diode: RunCommand, jsonl_path: Path) -> None:
    """A script gets all of them in the report."""
    jsonl_path.write_text("{\n" * 60)
    result = diode("import", *H200, "--json", str(jsonl_path))
    report = json.loads(result.out)
    assert (result.code, len(report["bad"]), report["measurements"]) == (1, 60, 0)
    assert report["bad"][59].startswith(f"{jsonl_path}:60: malformed JSON")


def test_import_of_a_file_of_bad_lines_is_not_a_flood(diode: RunCommand, jsonl_path: Path) -> None:
    """Fifty are printed, all are counted."""
    jsonl_path.write_text("{\n" * 60)
    errors = diode("import", *H200, str(jsonl_path)).err.splitlines()
    assert len(errors) == 1 + 50 + 2
    assert errors[-2] == "more bad lines follow; --json lists all"
    assert errors[-1].startswith("error: 60 bad lines; ")


def test_import_dry_run_writes_nothing(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """It says what would be added, and what is there already."""
    would = diode("import", *H200, "--dry-run", str(jsonl_path))
    assert would.out == "6 measurements with 79 timings would be added\n"
    assert store.counts()["measurements"] == 0
    diode("import", *H200, str(jsonl_path))
    assert diode("import", *H200, "--dry-run", str(jsonl_path)).out.startswith("nothing new: all 6")


def test_import_reads_gzip_and_stdin(jsonl_path: Path, database_url: str, store: Store) -> None:
    """Compressed input through a pipe is understood like a file."""
    program = Path(sys.executable).with_name("diode")
    subprocess.run(
        [program, "import", *H200, "-"], input=gzip.compress(jsonl_path.read_bytes()), check=True, capture_output=True
    )
    assert store.counts()["timings"] == 79
    bad = subprocess.run([program, "import", *H200, "-"], input=b"\n{", capture_output=True, check=False)
    assert (bad.returncode, b"\nstdin:2: malformed JSON" in bad.stderr) == (1, True)


def test_import_of_a_file_that_was_cut(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """What comes before the end is kept, and the break is named."""
    packed = gzip.compress(jsonl_path.read_bytes(), compresslevel=1)
    jsonl_path.write_bytes(packed[:-20])
    result = diode("import", *H200, str(jsonl_path))
    kept = store.counts()["measurements"]
    assert 0 < kept < 6
    assert f"{jsonl_path}:{kept + 1}: the file breaks off here" in result.err


def test_import_of_a_missing_file_keeps_what_came_before(diode: RunCommand, jsonl_path: Path, store: Store) -> None:
    """Files are read in their order."""
    result = diode("import", *H200, str(jsonl_path), "missing.jsonl")
    assert result.code == 1
    assert result.err.endswith("error: missing.jsonl: No such file or directory; check the file's name\n")
    assert store.counts()["measurements"] == 6


@pytest.mark.parametrize("name", ["blob", "blob.bin.gz"])
def test_import_of_an_unknown_format(diode: RunCommand, tmp_path: Path, name: str) -> None:
    """What begins like no format we know is refused whole, with the option that overrules."""
    start = b"PAR1 and so on"
    (tmp_path / name).write_bytes(gzip.compress(start) if name.endswith(".gz") else start)
    result = diode("import", *H200, str(tmp_path / name))
    assert result.code == 1
    assert "blob" in result.err
    assert "unknown format (it begins with b'PAR1 and so on'); name it with --format jsonl" in result.err
    assert "malformed JSON" in diode("import", *H200, "--format", "jsonl", str(tmp_path / name)).err


def test_import_of_jsonl_by_another_name(diode: RunCommand, jsonl_path: Path) -> None:
    """Without a telling name, the first bytes decide."""
    plain = jsonl_path.rename(jsonl_path.with_name("runs"))
    assert diode("import", *H200, str(plain)).out == "6 measurements with 79 timings added\n"


def test_import_of_nothing(diode: RunCommand, tmp_path: Path) -> None:
    """An empty file is no error."""
    (tmp_path / "empty.jsonl").write_text("\n")
    result = diode("import", *H200, str(tmp_path / "empty.jsonl"))
    assert (result.code, result.out) == (0, "nothing to add: there is no measurement in these files\n")


def test_import_writes_in_batches(store: Store, jsonl_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file becomes several transactions of about the same size."""
    monkeypatch.setattr(importing, "TIMINGS_AT_ONCE", 30)
    written: list[float] = []
    context = importing.jsonl.ImportContext(hardware=importing.jsonl._known_device("h200"))
    report = importing.import_files(store, [str(jsonl_path)], context, on_progress=written.append)
    assert (report.measurements, sum(written)) == (6, 6)
    assert len(written) > 1


def everything(make: MakeMeasurement) -> list[Measurement]:
    """Return measurements that use every field, and some that use none."""
    base = make(1)
    bmm = Problem.create(
        "addmm",
        (
            TensorSpec("float16", (24,), (1,)),
            TensorSpec("float16", (8, 16), (16, 1)),
            TensorSpec("float16", (16, 24), (1, 16)),
        ),
        {"alpha": 0.5},
    )
    full = make(
        2,
        problem=bmm,
        hardware=replace(base.hardware, name="NVIDIA H100", l2_bytes=52428800, extra={"bin": 3}),
        environment=Environment(torch="2.13.0", template_hashes={"triton::mm": "abc"}, extra={"nccl": "2"}),
        timings=(
            Timing(base.timings[0].config, 0.1 + 0.2, repeats=40, p10_us=0.3, p90_us=1 / 3),
            Timing(base.timings[1].config, 1e6, is_estimate=True),
            Timing(base.timings[2].config, None, Outcome.WRONG_RESULT),
        ),
        measured_at=None,
        **{**EVERY_FIELD, "timing_method": TimingMethod("min", flush_l2=False, launch_hidden=True)},
    )
    return [base, full, make(3, environment=Environment(), runtimes=(None,))]


def test_jsonl_round_trip(
    store: Store,
    diode: RunCommand,
    tmp_path: Path,
    another_database: str,
    database_url: str,
    make_measurement: MakeMeasurement,
) -> None:
    """Into a fresh warehouse and out again: the same records, keys, timings and counts."""
    store.write(everything(make_measurement))
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert diode("export", "-o", str(first)).out == f"{first}: 3 measurements with 7 timings\n"
    imported = diode("import", str(first), "--database", another_database)
    assert imported.out == "3 measurements with 7 timings added\n"
    assert content(another_database) == content(database_url)
    with Store.open(another_database) as other:
        assert other.counts() == store.counts()
    diode("export", "-o", str(second), "--database", another_database)
    assert [sorted_choices(line) for line in lines_of(second)] == [sorted_choices(line) for line in lines_of(first)]


def test_real_data_survive_the_round_trip(
    diode: RunCommand, jsonl_path: Path, tmp_path: Path, another_database: str, database_url: str
) -> None:
    """What was imported from a benchmark's file comes back complete, padded sizes and all."""
    diode("import", *H200, "--dataset", "excerpt", str(jsonl_path))
    out = tmp_path / "out.jsonl.gz"
    diode("export", "-o", str(out))
    assert gzip.decompress(out.read_bytes()).count(b"\n") == 6
    diode("import", str(out), "--database", another_database)
    assert content(another_database) == content(database_url)
    again = diode("import", *H200, "--dataset", "excerpt", str(jsonl_path), "--database", another_database)
    assert again.out == "nothing new: all 6 measurements were there already\n"


def test_compressed_exports_are_the_same_bytes(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """Neither the time nor the name gets into the file."""
    diode("import", *H200, str(jsonl_path))
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        diode("export", "-o", str(tmp_path / name))
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_export_of_a_part(store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement) -> None:
    """Hardware and op narrow what is written; what was matched is said."""
    store.write(everything(make_measurement))
    out = tmp_path / "part.jsonl"
    result = diode("export", "--hardware", "nvidia h100", "-o", str(out), "--json")
    assert json.loads(result.out) == {"file": str(out), "measurements": 1, "timings": 3}
    assert result.err == "hardware: NVIDIA H100 (sm_90, 132 multiprocessors)\n"
    assert [line["op"] for line in lines_of(out)] == ["addmm"]
    diode("export", "--op", "mm", "-o", str(out), "--force")
    assert [line["op"] for line in lines_of(out)] == ["mm", "mm"]


def test_export_to_stdout(jsonl_path: Path, diode: RunCommand, another_database: str, database_url: str) -> None:
    """A dash is standard output, so that one warehouse can be piped into another."""
    diode("import", *H200, str(jsonl_path))
    program = Path(sys.executable).with_name("diode")
    exported = subprocess.run([program, "export", "-o", "-"], capture_output=True, check=True)
    assert exported.stderr == b""
    environment = {**os.environ, "DIODE_DATABASE_URL": another_database}
    imported = subprocess.run(
        [program, "import", "-"], input=exported.stdout, env=environment, capture_output=True, check=True
    )
    assert imported.stdout == b"6 measurements with 79 timings added\n"
    assert content(another_database) == content(database_url)
    assert diode("export", "--format", "parquet", "-o", "-").code == 2


def test_parquet_holds_the_observations(
    store: Store, diode: RunCommand, tmp_path: Path, make_measurement: MakeMeasurement
) -> None:
    """One row a timing, the columns of the view; superseded measurements are left out as they are there."""
    store.write(everything(make_measurement))
    out = tmp_path / "all.parquet"
    assert diode("export", "--format", "parquet", "-o", str(out)).out == f"{out}: 2 measurements with 4 timings\n"
    header = diode("query", "SELECT * FROM observations LIMIT 0").out.strip().split(",")
    table = pq.read_table(out)
    assert table.column_names == header
    assert sorted(us for us in table["runtime_us"].to_pylist() if us is not None) == [10.5, 20.25]
    part = tmp_path / "part.parquet"
    assert diode("export", "--format", "parquet", "--hardware", "h200", "--op", "mm", "-o", str(part)).code == 0
    assert pq.read_metadata(part).num_rows == 4


@pytest.mark.parametrize("fmt", ["jsonl", "parquet"])
def test_export_does_not_overwrite(diode: RunCommand, jsonl_path: Path, tmp_path: Path, fmt: str) -> None:
    """A file that is there stays as it is unless --force is given."""
    diode("import", *H200, str(jsonl_path))
    out = tmp_path / "out"
    out.write_text("precious")
    refused = diode("export", "--format", fmt, "-o", str(out))
    assert refused.code == 1
    assert refused.err == f"error: {out} is there already; name another file, or replace it with --force\n"
    assert out.read_text() == "precious"
    assert diode("export", "--format", fmt, "-o", str(out), "--force").code == 0
    assert out.stat().st_size > 1000


@pytest.mark.parametrize("fmt", ["jsonl", "parquet"])
def test_export_of_nothing_leaves_no_file(diode: RunCommand, jsonl_path: Path, tmp_path: Path, fmt: str) -> None:
    """What there is instead is said, and nothing lies around."""
    diode("import", *H200, str(jsonl_path))
    before = set(tmp_path.iterdir())
    result = diode("export", "--format", fmt, "--op", "conv", "-o", str(tmp_path / "out"))
    assert result.code == 1
    assert "there is nothing to export; the warehouse holds 6 measurements" in result.err
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"warehouse.lake"}


def test_export_into_a_folder_that_is_not_there(diode: RunCommand, jsonl_path: Path, tmp_path: Path) -> None:
    """The system's reason makes one line."""
    diode("import", *H200, str(jsonl_path))
    result = diode("export", "-o", str(tmp_path / "nowhere" / "out.jsonl"))
    assert result.code == 1
    assert "out.jsonl cannot be written: No such file or directory" in result.err
    assert "is a folder; name a file in it" in diode("export", "-o", str(tmp_path)).err


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
