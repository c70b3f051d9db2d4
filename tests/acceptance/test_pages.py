"""What the README and the pages say is where they say, and the commands that they show exist."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

from diode_store.query.view_files import VIEWS
from diode_store.warehouse import schema
from page_commands import commands, unknown_options

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = CHECKOUT / "docs"
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (PAGES / "architecture.md").read_text(encoding="utf-8")
PACKAGES = (
    "diode_store",
    "collectors/diode_collectors",
    "trainer/diode_trainer",
    "integration/diode_integration",
    "integration/torch_diode",
    "explorer/diode_explorer",
)


def project_urls() -> dict[str, str]:
    """Return the addresses in the package's metadata by name."""
    pairs = (line.split(", ", 1) for line in metadata("torch-diode").get_all("Project-URL") or ())
    return dict(pairs)


def named_paths(page: str) -> list[str]:
    """Return every path from the root of the checkout that a page names."""
    spans = re.findall(r"`([^`\s]+)`", page)
    return [span for span in spans if "/" in span and "NNNN" not in span]


def test_every_path_exists() -> None:
    """Each file and folder that the page on architecture names is there."""
    paths = named_paths(ARCHITECTURE)
    assert len(paths) > 50
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_is_named(package: str) -> None:
    """Each folder with modules has its line, but those whose parent's line speaks for them."""
    rooms = [path.parent for path in (CHECKOUT / package).rglob("__init__.py")]
    named = {path.rstrip("/") for path in named_paths(ARCHITECTURE)}
    assert {str(room.relative_to(CHECKOUT)) for room in rooms} - named == set()


@pytest.mark.parametrize(
    ("path", "holds"),
    [
        ("diode_store/warehouse/schema.py", r"^timings = Table\("),
        ("diode_store/query/views/fastest_configs.sql", r"VIEW fastest_configs"),
        ("collectors/diode_collectors/feedback/records.py", r"milliseconds \* MICROSECONDS_PER_MILLISECOND"),
        ("trainer/diode_trainer/features.py", r"^FEATURE_VERSION ="),
        ("integration/diode_integration/choices.py", r"except AbstentionError"),
        ("collectors/diode_collectors/spool/writer.py", r"def seal\("),
    ],
)
def test_what_a_newcomer_looks_for(path: str, holds: str) -> None:
    """The files that the page names for six usual questions hold the answers."""
    assert path in named_paths(ARCHITECTURE)
    assert re.search(holds, (CHECKOUT / path).read_text(encoding="utf-8"), re.MULTILINE)


def test_names_in_the_way_of_the_data() -> None:
    """The table of timings and the view of the fastest kernels are called what the page calls them."""
    assert "`timings`" in ARCHITECTURE
    assert "`fastest_configs`" in ARCHITECTURE
    assert schema.timings.name == "timings"
    assert "fastest_configs" in VIEWS


def test_links_work_outside_the_repository() -> None:
    """The README is shown on the package index too, so its links are absolute; each leads to a file of the checkout."""
    defined = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", README, re.MULTILINE))
    used = set(re.findall(r"\]\[([^\]]+)\]", README))
    assert re.findall(r"\]\((?!https://)", README) == []
    assert used == set(defined)
    prefix = f"{project_urls()['Repository']}/blob/main/"
    assert [url for url in defined.values() if not (CHECKOUT / url.removeprefix(prefix)).is_file()] == []


def test_addresses_in_the_metadata() -> None:
    """The package names where it comes from, is documented and discussed."""
    assert set(project_urls()) == {"Homepage", "Repository", "Documentation", "Changelog", "Issues"}
    assert f"site_url: {project_urls()['Documentation']}" in (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8")


def test_every_page_is_listed() -> None:
    """The first page and the site's navigation list each page once."""
    pages = sorted(page.name for page in PAGES.glob("*.md"))
    navigation = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8")
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\s+- ([\w-]+\.md)$", navigation, re.MULTILINE)) == pages
    assert sorted([*re.findall(r"\]\(([\w-]+\.md)\)", index), "index.md"]) == pages


@pytest.mark.parametrize("words", commands(README), ids=" ".join)
def test_commands_of_the_readme(words: list[str]) -> None:
    """Each command exists and takes the options that it is shown with."""
    assert unknown_options(words) == set()


def test_version_of_the_package() -> None:
    """`torch_diode.__version__` is that of the distribution, and any other name is no attribute."""
    code = "import torch_diode; print(torch_diode.__version__, hasattr(torch_diode, 'no_such_name'))"
    told = subprocess.run(
        [sys.executable, "-c", code], env={"DIODE_DISABLE": "1"}, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"{version('torch-diode')} False\n"
