"""Show what is in the spools."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from diode_collectors.ingest.commands.settings_options import SettingsOptions, options_of
from diode_collectors.ingest.each_spool import in_json, on_each
from diode_store.command_line.console import JsonOption, print_error, print_json, print_note, print_pairs
from diode_store.command_line.options import takes_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from diode_collectors.ingest.each_spool import SpoolOutcome
    from diode_collectors.spool.spool import SpoolStatus


@takes_options(options_of("spool"))
def status(*, as_json: JsonOption = False, options: SettingsOptions) -> None:
    """Show the segments that wait and the files in quarantine.

    The command covers the spools that `run` with the same options would read. For several spools, --json prints the
    sums, and lists each spool under `spools`.

    Example: diode-ingest status --json
    """
    settings = options.load()
    options.note_file()
    outcomes = on_each(settings.spool, _status_of)
    for outcome in outcomes:
        if outcome.error:
            print_error(str(outcome.error))
    if as_json:
        print_json(_as_json(outcomes))
    else:
        _print_blocks([outcome.result for outcome in outcomes if outcome.result])
    if any(outcome.error for outcome in outcomes):
        raise typer.Exit(1)


def _status_of(spool: Path) -> SpoolStatus:
    from diode_collectors.spool.spool import Spool

    return Spool(spool).status()


def _print_blocks(found: Sequence[SpoolStatus]) -> None:
    for number, each in enumerate(found):
        if number:
            typer.echo()
        reasons = each.quarantined_by_reason
        listed = ", ".join(f"{reason} {n:,}" for reason, n in reasons.items()) or None
        print_pairs({**asdict(each), "quarantined_by_reason": listed, "unreadable": len(each.unreadable)})
        for line in each.unreadable:
            print_note(line)


def _as_json(outcomes: Sequence[SpoolOutcome[SpoolStatus]]) -> Mapping[str, object]:
    shown = [_plain(outcome) for outcome in outcomes]
    return in_json(shown, _added_up([outcome.result for outcome in outcomes if outcome.result]))


def _plain(outcome: SpoolOutcome[SpoolStatus]) -> dict[str, object]:
    return asdict(outcome.result) if outcome.result else {"directory": outcome.spool, "error": str(outcome.error)}


def _added_up(found: Sequence[SpoolStatus]) -> dict[str, object]:
    from collections import Counter

    reasons: Counter[str] = Counter()
    for each in found:
        reasons.update(each.quarantined_by_reason)
    return {
        "segments": sum(each.segments for each in found),
        "live_segments": sum(each.live_segments for each in found),
        "bytes": sum(each.bytes for each in found),
        "oldest_s": max((each.oldest_s for each in found if each.oldest_s is not None), default=None),
        "quarantined": sum(each.quarantined for each in found),
        "quarantined_by_reason": reasons,
        "quarantine_bytes": sum(each.quarantine_bytes for each in found),
        "unreadable": [line for each in found for line in each.unreadable],
    }
