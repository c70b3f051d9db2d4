"""Implement `diode-ingest dashboard` and `diode-ingest alerts`."""

from __future__ import annotations

from importlib import resources

import typer

_FOLDER = "diode_collectors.ingest.monitoring"


def dashboard() -> None:
    """Print a Grafana dashboard of the daemon's metrics.

    Import it under Dashboards, New, Import, or put it into a folder that Grafana provisions. The dashboard asks for a
    Prometheus data source.

    Example: diode-ingest dashboard > diode-ingest.json
    """
    _print("dashboard.json")


def alerts() -> None:
    """Print alert rules for Prometheus.

    Name the file under `rule_files` in prometheus.yml. The first rule expects a job called diode-ingest.

    Example: diode-ingest alerts > diode-ingest.rules.yml
    """
    _print("alerts.yml")


def _print(name: str) -> None:
    typer.echo(resources.files(_FOLDER).joinpath(name).read_text(encoding="utf-8"), nl=False)
