"""`diode import`: what is added, what is said of bad lines and files."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored import content

from diode_store.exchange import importing
from diode_store.records import (
    Environment,
    Source,
)

if TYPE_CHECKING:
    from conftest import RunCommand
    from diode_store.warehouse.store import Store

pytestmark = pytest.mark.usefixtures("default_database")

H200 = ("--hardware", "h200")
MATCHED = "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)\n"


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
            "error: --hardware: unknown hardware 'abacus'; describe it (vendor, name, arch, multiprocessors)",
        ),
        (
            ("--hardware", "a100"),
            "error: --hardware: 'a100' could be any of: NVIDIA A100 80GB PCIe (sm_80, 108 multiprocessors), ",
        ),
        (("--hardware-file", "missing.json"), "error: --hardware-file missing.json: No such file or directory"),
        ((*H200, "--environment", "missing.json"), "error: --environment missing.json: No such file or directory"),
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
    """Options that exclude each other, times that are none and formats we do not have exit with 2."""
    assert diode("import", *H200, "--hardware-file", "x.json", str(jsonl_path)).code == 2
    soon = diode("import", *H200, "--measured-at", "soon", str(jsonl_path))
    assert (soon.code, "'--measured-at': 'soon' is not a time; write 2026-11-20 or" in " ".join(soon.err.split())) == (
        2,
        True,
    )
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
    assert last == "error: 3 bad lines; the good ones are in the warehouse; correct the files and import again"
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
    assert errors[-2] == "more bad lines follow; --json lists 1,000"
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
    start = b"MIDI and so on"
    (tmp_path / name).write_bytes(gzip.compress(start) if name.endswith(".gz") else start)
    result = diode("import", *H200, str(tmp_path / name))
    assert result.code == 1
    assert "blob" in result.err
    assert "unknown format (it begins with b'MIDI and so on'); name it with --format jsonl" in result.err
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
