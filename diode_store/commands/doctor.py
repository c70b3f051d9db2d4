"""Check the installation: versions, GPU, warehouse, cache, spool, daemon, models and hook, each with its remedy.

The command changes nothing. Each line is ok, a warning (it works, but not fully) or a problem, with a remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.command_line.console import JsonOption, NamedDatabaseOption, make_app, print_json
from diode_store.command_line.render import cell_text, counted
from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from diode_store.command_line.diagnosis import Finding, Level

app = make_app(__doc__)
_LEVEL_WIDTH, _SUBJECT_WIDTH = 7, 11


@app.command(help=__doc__, no_args_is_help=False)
def doctor(
    database: NamedDatabaseOption = None,
    *,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, max=86_400, help="Maximum time of each check."),
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Exit with 1 if there is a problem.

    Example: diode doctor --json
    """
    from collections import Counter
    from dataclasses import asdict

    from diode_store.command_line.diagnosis import Level

    found: list[Finding] = []
    for finding in _all_findings(database, timeout):
        if finding in found:  # several checks read the settings
            continue
        found.append(finding)
        if not as_json:
            _print(finding)
    counts = Counter(finding.level for finding in found)
    if as_json:
        print_json({"problems": counts[Level.PROBLEM], "findings": [asdict(finding) for finding in found]})
    else:
        typer.echo(f"\n{_summary(counts)}")
    if counts[Level.PROBLEM]:
        raise typer.Exit(1)


def _all_findings(database: str | None, timeout: float) -> Iterator[Finding]:
    from diode_store.command_line.diagnosis import Setup, checks, findings, problem_of_settings
    from diode_store.system.settings import default_database_url

    try:
        setup = Setup(default_database_url() if database is None else database)
    except SettingsError as error:
        yield problem_of_settings(error)
        setup = Setup(None)
    for entry in checks():
        yield from findings(entry, setup, timeout)


def _print(finding: Finding) -> None:
    lead = f"{finding.level:<{_LEVEL_WIDTH}}  {finding.subject:<{_SUBJECT_WIDTH}}  "
    typer.echo(f"{lead}{cell_text(finding.text)}")
    if finding.remedy:
        typer.echo(f"{' ' * len(lead)}-> {cell_text(finding.remedy)}")


def _summary(counts: Counter[Level]) -> str:
    from diode_store.command_line.diagnosis import Level

    return f"{counted(counts[Level.PROBLEM], 'problem')}, {counted(counts[Level.WARNING], 'warning')}"
