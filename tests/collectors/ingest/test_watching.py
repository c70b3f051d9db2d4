"""The dashboard and the alert rules that ship ask for what the daemon exports, in PromQL that Prometheus takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser as promql
import pytest
import yaml

from diode_collectors.ingest.monitoring.health import Health
from diode_collectors.ingest.monitoring.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Path(sys.executable).parent / "diode-ingest"
SPOOL = Path(__file__).parent
OF_PROMETHEUS = frozenset({"job", "instance"})
"""Labels that a scrape adds."""


def printed(command: str) -> str:
    """Return what `diode-ingest` prints."""
    return subprocess.run([PROGRAM, command], capture_output=True, text=True, check=True).stdout


DASHBOARD: dict[str, Any] = json.loads(printed("dashboard"))
RULES: list[dict[str, Any]] = yaml.safe_load(printed("alerts"))["groups"][0]["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def asked() -> list[str]:
    """Return every expression of both files, with Grafana's variables filled in."""
    found = [target["expr"] for panel in PANELS for target in panel["targets"]] + [rule["expr"] for rule in RULES]
    filled = {"$job": "diode-ingest", "$instance": ".*", "$__rate_interval": "1m"}
    for name, value in filled.items():
        found = [expression.replace(name, value) for expression in found]
    return found


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Return the name and labels of each sample that a daemon exports, and of `up`."""
    metrics = Metrics(Health(1))
    metrics.watch([SPOOL], None)
    metrics.started([SPOOL])
    found = {"up": set(OF_PROMETHEUS), "diode_ingest_last_success_timestamp_seconds": {"spool", *OF_PROMETHEUS}}
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set(OF_PROMETHEUS)).update(sample.labels)
    return found


def selectors(node: Any) -> Iterator[Any]:
    """Yield the selectors of an expression, wherever they are."""
    if isinstance(node, promql.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


@pytest.mark.parametrize("expression", asked())
def test_what_is_asked_for_exists(expression: str, exported: dict[str, set[str]]) -> None:
    """Each name, and each label that is matched."""
    found = list(selectors(promql.parse(expression)))
    assert found
    for selector in found:
        assert selector.name in exported
        assert {matcher.name for matcher in selector.matchers.matchers} <= exported[selector.name]


def test_every_metric_is_drawn(exported: dict[str, set[str]]) -> None:
    """What the daemon exports of its own is on the dashboard, and no name there is another's."""
    drawn = {each.name for expression in asked()[: -len(RULES)] for each in selectors(promql.parse(expression))}
    ours = {name for name in exported if name.startswith("diode_ingest_")}
    histogram = {"diode_ingest_batch_seconds_count", "diode_ingest_batch_seconds_sum"}
    assert ours - drawn == histogram


def labels_of(node: Any, exported: dict[str, set[str]]) -> set[str]:
    """Return the labels of what an expression gives."""
    if isinstance(node, promql.AggregateExpr):
        by = set(node.modifier.labels) if node.modifier else set()
        assert by <= labels_of(node.expr, exported), node
        return by
    if isinstance(node, promql.BinaryExpr):
        return labels_of(node.lhs, exported) | labels_of(node.rhs, exported)
    inner = next(selectors(node), None)
    return set() if inner is None else exported[inner.name]


def test_what_is_written_has_the_labels_that_are_left(exported: dict[str, set[str]]) -> None:
    """Legends and annotations name no label that the expression drops, and none that is not there is grouped by."""
    written = [(t["expr"], re.findall(r"{{(\w+)}}", t["legendFormat"])) for panel in PANELS for t in panel["targets"]]
    written += [(rule["expr"], re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) for rule in RULES]
    assert sum(len(names) for _, names in written) > 40
    for expression, names in written:
        left = labels_of(promql.parse(expression.replace("$__rate_interval", "1m")), exported)
        assert set(names) <= left, expression


def test_panels_neither_overlap_nor_share_a_number() -> None:
    """Each has a place of its own in the grid of 24 columns, a title and a text."""
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        assert panel["title"]
        assert panel["description"]
        taken |= cells
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_every_alert_says_what_and_how_bad() -> None:
    """Rules have names of their own, a severity, a summary and a description."""
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_a_first_rejection_is_an_increase() -> None:
    """The counter of each reason begins at 0; Prometheus takes one that begins at 1 for one that has not moved."""
    metrics = Metrics(Health(1))
    metrics.started([SPOOL])
    rejected = [
        sample for family in metrics.registry.collect() for sample in family.samples if "rejected_total" in sample.name
    ]
    assert {sample.value for sample in rejected} == {0.0}
    assert "bad_crc" in {sample.labels["reason"] for sample in rejected}
