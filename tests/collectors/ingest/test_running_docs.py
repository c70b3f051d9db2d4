"""The pages on the daemon name every metric there is, and no other; their files are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import PREFIX, Metrics
from diode_collectors.ingest.settings import SETTINGS, read

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
MONITORING = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
ALERTS = ROOT / "collectors/diode_collectors/ingest/monitoring/alerts.yml"
SOURCES = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "collectors/diode_collectors").rglob("*.py"))


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return list(_cells(section))[2:]


def _cells(section: str) -> Iterator[list[str]]:
    for line in re.findall(r"^\|.*\|$", section, re.MULTILINE):
        yield [cell.strip() for cell in line.strip("|").split("|")]


def blocks(kind: str) -> list[str]:
    """Return the page's blocks of a kind, without the indent of a list."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def test_what_needs_a_restart_is_told() -> None:
    """The page names the settings that SIGHUP leaves as they are."""
    *most, last = [f"`{name}`" for name, setting in SETTINGS.items() if setting.needs_restart]
    named = f"{', '.join(most)} and\n{last} need a restart"
    assert named in PAGE


def test_every_metric_is_on_the_page_and_every_one_on_it_exists() -> None:
    """With its labels; those of the process are Prometheus's own."""
    health = Health(1)
    metrics = Metrics(health)
    metrics.watch([ROOT], None)
    metrics.started([ROOT])
    found: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        if not family.name.startswith("process_"):
            name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
            found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    # It has a sample only once something happened.
    found[f"{PREFIX}last_success_timestamp_seconds"] = {"spool"}
    section = MONITORING.partition("\n## Health and metrics\n")[2]
    table = [cells for cells in _cells(section) if cells[0].startswith(f"`{PREFIX}")]
    assert {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table} == found


def test_the_table_of_alerts_is_that_of_the_file() -> None:
    """Name by name, in its order, with how long each must hold."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    table = [cells for cells in _cells(MONITORING) if cells[0].startswith("`DiodeIngest")]
    told = [(rule["alert"], rule.get("for", "").replace("m", " min")) for rule in group["rules"]]
    assert [(name.strip("`"), after) for name, after, _ in table] == told


@pytest.mark.parametrize("number", range(len(blocks("toml"))))
def test_the_settings_files_are_read(tmp_path: Path, number: int) -> None:
    """As the page has them."""
    path = tmp_path / "d.toml"
    path.write_text(blocks("toml")[number])
    assert "database" in read(path)


def test_the_file_in_the_recipe_is_read(tmp_path: Path) -> None:
    """The one between the two ENDs, too."""
    (text,) = re.findall(r"<<'END'\n(.*?)END\n", PAGE, re.DOTALL)
    path = tmp_path / "d.toml"
    path.write_text(text)
    assert sorted(read(path)) == ["database", "spool"]


def test_what_the_log_says_is_what_the_page_explains() -> None:
    """Each word in the table of troubles is one that the code says."""
    for says, do in rows("What to do when…"):
        assert do
        for words in re.findall(r"`([^`]+)`", says):
            for part in words.split(" … "):
                told = part.removesuffix(" (pid …)")
                assert told == "/readyz" or told in SOURCES + _store_sources(), told


def _store_sources() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "diode_store").rglob("*.py"))


def test_the_addresses_are_addresses() -> None:
    """Those in options on the page are taken."""
    addresses = re.findall(r"--listen ([\w.:]+)", PAGE)
    assert addresses
    for address in addresses:
        if address != "off":
            assert SETTINGS["listen"].parse(address) is not None


def test_the_pages_link_to_pages_that_exist() -> None:
    """And to headings that do."""
    for page in ("running.md", "ingest.md", "monitoring.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for target, _, heading in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", text)):
            if target.startswith("reference/"):  # written from the code by `make docs`
                continue
            linked = ROOT / "docs" / (target or page)
            assert linked.is_file(), f"{page}: {target}"
            slugs = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            assert not heading or heading in {re.sub(r"[^\w-]", "", slug.lower().replace(" ", "-")) for slug in slugs}
