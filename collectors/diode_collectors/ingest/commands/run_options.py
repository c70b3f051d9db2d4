"""The options of ``diode-ingest``, one a setting; without it the file says, or the default holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diode_collectors.ingest.settings import CONFIG_VARIABLE, OFF

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        help="The settings file (TOML). The environment goes before it, and options before both.",
        show_default="diode-ingest.toml in your config folder, if there",
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="DIODE_DATABASE_URL",
        help="The warehouse: a URL, or the path of an SQLite file.",
        show_default="SQLite in your data folder",
    ),
]
SpoolsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--spool",
        metavar="DIR",
        envvar="DIODE_SPOOL",
        help="A spool: the folder where collectors leave their records. May be given several times.",
        readable=False,  # not checked here: a folder that cannot be read must not stop what is done with the others
        show_default="spool in your data folder",
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        envvar="DIODE_GROUP",
        metavar="NAME",
        help="Share the spools with this group, so that many users write and one daemon ingests.",
    ),
]
PollIntervalOption = Annotated[
    float | None,
    typer.Option(
        "--poll-interval",
        envvar="DIODE_POLL_INTERVAL_S",
        metavar="SECONDS",
        help="Longest time from one look into a spool to the next; changes are seen sooner.",
        show_default="1",
    ),
]
BackoffFirstOption = Annotated[
    float | None,
    typer.Option(
        "--backoff-first",
        envvar="DIODE_BACKOFF_FIRST_S",
        metavar="SECONDS",
        help="Longest wait after the first failure; it doubles with each further one.",
        show_default="0.5",
    ),
]
BackoffMostOption = Annotated[
    float | None,
    typer.Option(
        "--backoff-most",
        envvar="DIODE_BACKOFF_MOST_S",
        metavar="SECONDS",
        help="Longest wait at all.",
        show_default="30",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="DIODE_LISTEN",
        metavar="HOST:PORT",
        help=f"Where /healthz, /readyz and /metrics are served; {OFF} for nowhere.",
        show_default="127.0.0.1:19464",
    ),
]
HangAfterOption = Annotated[
    float | None,
    typer.Option(
        "--hang-after",
        envvar="DIODE_HANG_AFTER_S",
        metavar="SECONDS",
        help="After how long without a sign of life /healthz says that it hangs.",
        show_default="300",
    ),
]
MinFreeBytesOption = Annotated[
    int | None,
    typer.Option(
        "--min-free-bytes",
        envvar="DIODE_MIN_FREE_BYTES",
        metavar="BYTES",
        help="Hold ingesting while less is free on the warehouse's disk.",
        show_default="512 MiB",
    ),
]
QuarantineBytesOption = Annotated[
    int | None,
    typer.Option(
        "--quarantine-bytes",
        envvar="DIODE_QUARANTINE_BYTES",
        metavar="BYTES",
        help="How large a quarantine may grow before its oldest damaged bytes are removed.",
        show_default="256 MiB",
    ),
]
LogLevelOption = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        envvar="DIODE_LOG_LEVEL",
        metavar="LEVEL",
        help="DEBUG, INFO, WARNING or ERROR.",
        show_default="INFO",
    ),
]
LogFormatOption = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        envvar="DIODE_LOG_FORMAT",
        metavar="FORMAT",
        help="text (key=value) or json (an object a line).",
        show_default="text",
    ),
]
NoListenOption = Annotated[bool, typer.Option("--no-listen", help="Serve no health, readiness or metrics.")]
