"""The distribution as a user gets it: built, installed into an empty environment, and run from there."""

from __future__ import annotations

import os
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
EXPLORER = CHECKOUT / "explorer" / "diode_explorer"
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
    assert "diode_store/query/views/fastest_configs.sql" in names
    for folder, suffix in (
        ("diode_store/_migrations/versions", ".py"),
        ("diode_store/_migrations/versions", ".txt"),
        ("diode_integration/_trained_models/matmul_kernel_runtime_prediction", ".pt"),
        ("diode_integration/_trained_models/matmul_kernel_runtime_prediction", ".json"),
        ("diode_collectors/ingest/monitoring", ".json"),
        ("diode_collectors/ingest/monitoring", ".yml"),
    ):
        assert [n for n in names if n.startswith(folder) and n.endswith(suffix)], f"no {suffix} in {folder}"


def test_wheel_holds_the_data(wheel: Path) -> None:
    """The bundled measurements, the lists of their problems and their README are inside, byte for byte."""
    archive = zipfile.ZipFile(wheel)
    prefix = "diode_collectors/data/"
    found = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    assert found == {path.name: path.read_bytes() for path in DATA.iterdir()}
    assert sorted({Path(name).suffix for name in found}) == [".md", ".seg", ".txt"]


def test_wheel_holds_the_explorer(wheel: Path) -> None:
    """Its templates, styles, scripts and whose the scripts are; not what the scripts were made from, nor axe-core."""
    archive = zipfile.ZipFile(wheel)
    prefix = "diode_explorer/"
    found = {name.removeprefix(prefix): archive.read(name) for name in archive.namelist() if name.startswith(prefix)}
    files = [path for path in EXPLORER.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert found == {str(path.relative_to(EXPLORER)): path.read_bytes() for path in files}
    assert {"static/vega/LICENSES.txt", "static/site.css", "templates/base.html"} <= found.keys()
    assert [name for name in archive.namelist() if name.startswith("explorer/") or "axe" in name] == []


def test_wheel_says_whose_it_is(wheel: Path) -> None:
    """Our licence, and those of the scripts that draw."""
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/licenses/" in name]
    assert sorted(name.partition("/licenses/")[2] for name in names) == [
        "LICENSE",
        "explorer/diode_explorer/static/vega/LICENSES.txt",
    ]


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
        counted = subprocess.run(query, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        assert counted.stdout.splitlines() == ["n,failed", "254053,2"]
    serve = [str(bin_directory / "diode"), "serve"]
    said = subprocess.run(serve, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (said.returncode, "pip install 'torch-diode[web]'" in " ".join(said.stderr.split())) == (1, True)


def installed(wheel: Path, directory: Path) -> Path:
    """Install ``wheel`` and its pinned dependencies into a new environment; return its bin folder."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    constraints = CHECKOUT / "constraints.txt"
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    return python.parent
