"""Options that say of a file of measurements what the file does not say itself, and the context they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware

EnvironmentOption = Annotated[
    Path | None, typer.Option("--environment", metavar="FILE", help='JSON: {"torch": "2.11.0", …}; else unknown.')
]
MeasuredAtOption = Annotated[
    str | None, typer.Option("--measured-at", metavar="TIME", help="When, as ISO 8601; UTC unless it names a zone.")
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help="Name of the data set the rows belong to.")]
LicenceOption = Annotated[str | None, typer.Option("--licence", help="Licence of the data set, as an SPDX identifier.")]
SearchSpaceOption = Annotated[
    str | None, typer.Option("--search-space", help="Out of which configs those that were timed were chosen.")
]


def import_context(
    hardware: Hardware | None,
    environment: Path | None,
    measured_at: str | None,
    *,
    dataset: str | None,
    licence: str | None,
    search_space: str | None,
) -> ImportContext:
    """Return the context that the options' values make.

    Raises:
        ImportFileError: the environment's file cannot be read, or the time is none.
    """
    from diode_store.exchange.context import ImportContext
    from diode_store.exchange.options import environment_file, time_of
    from diode_store.records import Environment

    return ImportContext(
        hardware=hardware,
        environment=environment_file(environment) if environment else Environment(),
        measured_at=time_of(measured_at) if measured_at else None,
        dataset=dataset,
        licence=licence,
        search_space=search_space,
    )
