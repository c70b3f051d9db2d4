"""What the README and the pages say is where they say, and the commands that they show exist."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import metadata, version
from pathlib import Path

import pytest

from diode_store.views.view_files import VIEWS
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
    "tuning/diode_tuning",
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
        ("diode_store/views/sql/fastest_configs.sql", r"VIEW fastest_configs"),
        ("collectors/diode_collectors/feedback/records.py", r"milliseconds \* US_PER_MS"),
        ("trainer/diode_trainer/features.py", r"^FEATURE_VERSION ="),
        ("diode_store/values/keys.py", r"^def content_key\("),
        ("integration/diode_integration/decide/abstention.py", r"^def who_ranks\("),
        ("integration/diode_integration/decide/abstention.py", r"^def why_vendor\("),
        ("diode_store/ops/table.py", r"^OPS\b"),
        ("collectors/diode_collectors/spool/writer.py", r"def seal\("),
    ],
)
def test_what_a_newcomer_looks_for(path: str, holds: str) -> None:
    """The files that the page names for nine usual questions hold the answers."""
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
    raw = prefix.replace("github.com", "raw.githubusercontent.com").replace("/blob/", "/")
    paths = [url.removeprefix(prefix).removeprefix(raw) for url in defined.values()]
    assert [path for path in paths if not (CHECKOUT / path).is_file()] == []


def test_addresses_in_the_metadata() -> None:
    """The package names where it comes from, is documented and discussed."""
    assert set(project_urls()) == {"Homepage", "Repository", "Documentation", "Changelog", "Issues"}
    assert f'site_url = "{project_urls()["Documentation"]}"' in (CHECKOUT / "zensical.toml").read_text(encoding="utf-8")


def pages() -> list[str]:
    """Return each page that is committed, by its path below docs."""
    found = (path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md"))
    return sorted(name for name in found if not name.startswith("reference/"))


def test_every_page_is_listed() -> None:
    """The site's navigation lists each page once; the first page and that of results lead to all."""
    navigation = (CHECKOUT / "zensical.toml").read_text(encoding="utf-8")
    listed = [name for name in re.findall(r'"([\w/-]+\.md)"', navigation) if not name.startswith("reference/")]
    assert sorted(listed) == pages()
    led = {"index.md", *linked("index.md"), *linked("results/index.md"), *linked("results/what-helps-a-model.md")}
    assert [name for name in pages() if name not in led] == []


def linked(name: str) -> set[str]:
    """Return the pages that a page links to, by their paths below docs."""
    page = PAGES / name
    targets = re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve().relative_to(PAGES).as_posix() for target in targets}


@pytest.mark.parametrize("name", [name for name in pages() if name != "upstream.md"])  # names upstream's files
def test_paths_of_the_pages(name: str) -> None:
    """Each source file that a page names is there."""
    named = re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|toml|sh|seg))`", (PAGES / name).read_text(encoding="utf-8"))
    assert [path for path in named if not (CHECKOUT / path).exists()] == []


@pytest.mark.parametrize("name", pages())
def test_commands_of_the_pages(name: str) -> None:
    """Each command that a page shows exists and takes the options that it is shown with."""
    shown = commands((PAGES / name).read_text(encoding="utf-8"))
    assert [words for words in shown if unknown_options(words)] == []


@pytest.mark.parametrize("name", [name for name in pages() if name.startswith("results/") and "index" not in name])
def test_results_say_where_they_are_from(name: str) -> None:
    """A page of results names its date below the title, or leads to pages that do."""
    text = (PAGES / name).read_text(encoding="utf-8")
    assert re.match(r"# [^\n]+\n\n(\*\d{4}-\d\d-\d\d |Recipes that were tried)", text)


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
