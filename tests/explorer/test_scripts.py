"""What draws the pictures: one script of other people's work, which says what is in it and whose it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
SCRIPTS = CHECKOUT / "explorer" / "scripts"
VEGA = CHECKOUT / "trainer" / "diode_trainer" / "report" / "static" / "vega"
PERMISSIVE = {"Apache-2.0", "BSD-3-Clause", "ISC", "MIT", "0BSD", "BSD-2-Clause"}


def asked_for() -> dict[str, str]:
    """Return the packages that the script is made from, with their versions."""
    return dict(json.loads((SCRIPTS / "package.json").read_text())["dependencies"])


def test_the_script_is_made_from_what_is_asked_for() -> None:
    """Its first line and the lock name the versions of package.json; `make web-scripts` brings them together."""
    with (VEGA / "vega.js").open() as file:
        banner = file.readline()
    named = dict(re.findall(r"([\w-]+) (\d+\.\d+\.\d+)", banner.partition(". See")[0]))
    packages = json.loads((SCRIPTS / "package-lock.json").read_text())["packages"]
    locked = {name: packages[f"node_modules/{name}"]["version"] for name in asked_for()}
    assert named == locked == asked_for()


def test_licences_of_all_that_is_in_it() -> None:
    """With its text, each of them one that lets us ship it."""
    text = (VEGA / "LICENSES.txt").read_text()
    found = re.findall(r"^(\S+) (\S+) \((\S+)\)$", text, re.MULTILINE)
    versions = {name: version for name, version, _ in found}
    assert {name: versions[name] for name in asked_for()} == asked_for()
    assert {licence for _, _, licence in found} <= PERMISSIVE
    assert len(found) == text.count("-" * 80) + 1
