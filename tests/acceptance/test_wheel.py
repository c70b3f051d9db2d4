"""The distribution as a user gets it: built, installed into an empty environment, and run from there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import cheap_compiles
from lanes import long

CHECKOUT = Path(__file__).resolve().parents[2]
DATA = CHECKOUT / "collectors" / "diode_collectors" / "data"
PAGES = {
    CHECKOUT / "explorer" / "diode_explorer": {"static/site.js", "templates/site.html"},
    CHECKOUT / "trainer" / "diode_trainer" / "report": {
        "static/vega/LICENSES.txt",
        "static/page.css",
        "templates/base.html",
    },
}
"""Folder with templates and scripts → some of its files."""
OURS = ("DIODE_", "PYTHON", *cheap_compiles.settings(Path()))
"""How variables begin that a user's shell does not have."""


def built(kind: str, directory: Path) -> Path:
    """Build the wheel or sdist from the checkout."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(directory), str(CHECKOUT)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = directory.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel."""
    return built("wheel", tmp_path_factory.mktemp("wheel"))


def test_a_checkout_installs_on_the_oldest_python() -> None:
    """No version that constraints.txt names asks for a newer Python than torch-diode does, of those installed here."""
    admitted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["requires-python"]
    oldest = admitted.removeprefix(">=")
    lines = (CHECKOUT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(pin.name): pin for pin in map(Requirement, lines[1:])}
    asked = {
        str(pin): SpecifierSet(found.metadata.get("Requires-Python") or "")
        for found in distributions()
        if (pin := pinned.get(canonicalize_name(found.name))) and found.version in pin.specifier
    }
    assert len(asked) > 100
    assert [pin for pin, pythons in asked.items() if oldest not in pythons] == []


def test_wheel_holds_what_runs(wheel: Path) -> None:
    """Migrations, SQL, trained models and the systemd unit are inside."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "diode_collectors/ingest/systemd/diode-ingest.service" in names
    assert "diode_store/_migrations/env.py" in names
    assert "diode_store/views/sql/fastest_configs.sql" in names
    for folder, suffix in (
        ("diode_store/_migrations/versions", ".py"),
        ("diode_integration/_trained_models/matmul_kernel_runtime_prediction", ".pt"),
        ("diode_integration/_trained_models/matmul_kernel_runtime_prediction", ".json"),
        ("diode_integration/_trained_models/attention_kernel_runtime_prediction", ".pt"),
        ("diode_integration/_trained_models/attention_kernel_runtime_prediction", ".json"),
        ("diode_integration/_trained_models/convolution_kernel_runtime_prediction", ".pt"),
        ("diode_integration/_trained_models/convolution_kernel_runtime_prediction", ".json"),
        ("diode_collectors/ingest/monitoring", ".json"),
        ("diode_collectors/ingest/monitoring", ".yml"),
        ("diode_collectors/problems/family_data", ".toml"),
    ):
        assert [n for n in names if n.startswith(folder) and n.endswith(suffix)], f"no {suffix} in {folder}"


@pytest.mark.long
def test_wheel_holds_the_data(wheel: Path) -> None:
    """Bundled measurements, lists of problems and README are inside, byte for byte; the wheel stays under 40 MB."""
    archive = zipfile.ZipFile(wheel)
    prefix = "diode_collectors/data/"
    found = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    assert found == {path.name: path.read_bytes() for path in DATA.iterdir()}
    assert sorted({Path(name).suffix for name in found}) == [".md", ".seg", ".txt"]
    assert wheel.stat().st_size < 40_000_000


@pytest.mark.long
@pytest.mark.parametrize(("folder", "some"), PAGES.items())
def test_wheel_holds_the_pages(wheel: Path, folder: Path, some: set[str]) -> None:
    """Templates, styles, scripts and whose the scripts are; not what the scripts were made from, nor axe-core."""
    archive = zipfile.ZipFile(wheel)
    prefix = f"{folder.relative_to(CHECKOUT / folder.relative_to(CHECKOUT).parts[0])}/"
    found = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert found == {str(path.relative_to(folder)): path.read_bytes() for path in files}
    assert some <= found.keys()
    assert [name for name in archive.namelist() if name.startswith("explorer/") or "axe" in name] == []


def test_wheel_says_whose_it_is(wheel: Path) -> None:
    """Our licence, and those of the scripts that draw."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/licenses/" in name]
    assert sorted(name.partition("/licenses/")[2] for name in names) == [
        "LICENSE",
        "trainer/diode_trainer/report/static/vega/LICENSES.txt",
    ]


@pytest.mark.long
def test_sdist_holds_the_data(tmp_path: Path) -> None:
    """They are in the sdist too."""
    sdist = built("sdist", tmp_path)
    with tarfile.open(sdist) as archive:
        names = {Path(name).name for name in archive.getnames() if "/collectors/diode_collectors/data/" in name}
    assert names == {path.name for path in DATA.iterdir()}


@long
@pytest.mark.timeout(1800)
def test_loop_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """From the installed wheel the quickstart runs, twice, and the second run adds nothing; serve names its extra."""
    bin_directory = installed(wheel, tmp_path / "venv")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(OURS)},
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
    }
    quickstart = [str(bin_directory / "python"), str(CHECKOUT / "examples" / "quickstart.py")]
    count = "SELECT count(*) AS n, count(*) FILTER (WHERE outcome <> 'ok') AS failed FROM observations"
    query = [str(bin_directory / "diode"), "query", "--csv", count]
    for _ in range(2):
        finished = subprocess.run(
            quickstart, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
        assert "1,401" in finished.stdout  # kernels that the hook ranked, although no Triton is installed
        assert "it is ahead here" in finished.stdout
        picture = re.search(r"Look at file://(\S+quickstart.html), then try:\n(  diode .*\n){3}", finished.stdout)
        assert picture
        assert "fastest kernel" in Path(picture[1]).read_text(encoding="utf-8")
        counted = subprocess.run(query, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert counted.stdout.splitlines() == ["n,failed", "532384,588"]
    predict = [str(bin_directory / "diode"), "predict", "--shape", "mm:16x4096x4096/nt/bf16", "--hardware", "h200"]
    said = subprocess.run(predict, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (said.returncode, ": keeps " in said.stdout) == (0, True), said.stderr
    serve = [str(bin_directory / "diode"), "serve"]
    said = subprocess.run(serve, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (said.returncode, "pip install 'torch-diode[web]'" in " ".join(said.stderr.split())) == (1, True)


@long
@pytest.mark.timeout(3600)
def test_readme_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """After its install line the commands of README run as they are, in order; no line needs a file of nobody's."""
    bin_directory = installed(wheel, tmp_path / "venv", "web")
    (tmp_path / "work").mkdir()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(OURS)},
        "XDG_DATA_HOME": str(tmp_path / "data-home"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PATH": os.pathsep.join((str(bin_directory), os.environ["PATH"])),
    }
    for line in commands_of_readme():
        # The server runs until it is told to end.
        command = f"timeout --preserve-status 20 {line}" if line.startswith("diode serve") else line
        shell = ["/bin/bash", "-c", command]
        said = subprocess.run(
            shell, cwd=tmp_path / "work", env=environment, capture_output=True, text=True, check=False
        )
        assert said.returncode == (130 if command != line else 0), f"{line}\n{said.stderr[-4000:]}"
        assert "Traceback" not in said.stderr, f"{line}\n{said.stderr[-4000:]}"


def commands_of_readme() -> list[str]:
    """Return the commands that follow README's install line, without comments."""
    page = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.partition("\n## Use it\n")[2], re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_readme_uses_no_file_that_nobody_made() -> None:
    """Each file that a command of README reads, an earlier one wrote."""
    made: set[str] = set()
    for line in commands_of_readme():
        files = set(re.findall(r"(?<![\w./])[\w/-]+\.(?:jsonl|json|parquet|msgpack|html|pt)(?!\w)", line))
        written = set(re.findall(r"(?:-o|--output|--report) (\S+)", line))
        assert files - written <= made, line
        made |= written


def installed(wheel: Path, directory: Path, extra: str = "") -> Path:
    """Install ``wheel`` and its pinned dependencies, and an extra, into a new environment; return its bin folder."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    constraints = CHECKOUT / "constraints.txt"
    command = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        str(constraints),
        str(wheel) + (f"[{extra}]" if extra else ""),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return python.parent
