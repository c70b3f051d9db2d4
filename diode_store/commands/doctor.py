"""Check the installation: versions, GPU, warehouse, lake, spool, daemon, models and hook, each with its remedy.

Changes nothing. Each line is ok, a warning (it works, but not as it could) or a problem, with what to do about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.console import DatabaseOption, JsonOption, make_app, print_json
from diode_store.render import cell_text, counted

if TYPE_CHECKING:
    from collections import Counter

    from diode_store.diagnosis import Finding, Level

app = make_app(__doc__)
_LEVEL_WIDTH, _SUBJECT_WIDTH = 7, 11


@app.command(help=__doc__, no_args_is_help=False)
def doctor(
    database: DatabaseOption,
    *,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for each check.")
    ] = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Exit with 1 if there is a problem.

    Example: diode doctor --json
    """
    from collections import Counter
    from dataclasses import asdict

    from diode_store.diagnosis import Level, Setup, checks, findings

    setup = Setup(database)
    found: list[Finding] = []
    for entry in checks():
        for finding in findings(entry, setup, timeout):
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


def _print(finding: Finding) -> None:
    lead = f"{finding.level:<{_LEVEL_WIDTH}}  {finding.subject:<{_SUBJECT_WIDTH}}  "
    typer.echo(f"{lead}{cell_text(finding.text)}")
    if finding.remedy:
        typer.echo(f"{' ' * len(lead)}-> {cell_text(finding.remedy)}")


def _summary(counts: Counter[Level]) -> str:
    from diode_store.diagnosis import Level

    return f"{counted(counts[Level.PROBLEM], 'problem')}, {counted(counts[Level.WARNING], 'warning')}"
