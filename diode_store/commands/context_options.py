"""Options that supply what a file of measurements leaves out, and the context made from them."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diode_store.errors import ImportFileError

if TYPE_CHECKING:
    from diode_store.exchange.context import ImportContext
    from diode_store.records import Hardware


def check_time(text: str | None) -> str | None:
    """Return the value of a time option, checked before anything is opened.

    Raises:
        typer.BadParameter: the value is not a valid time.
    """
    from diode_store.exchange.descriptions import time_of

    try:
        if text is not None:
            time_of(text).astimezone(UTC)
    except ImportFileError as error:
        raise typer.BadParameter(str(error)) from error
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is outside UTC's range of years; write 2026-11-20") from error
    return text


EnvironmentOption = Annotated[
    Path | None, typer.Option("--environment", metavar="FILE", help='JSON: {"torch": "2.11.0", …}; else unknown.')
]
MeasuredAtOption = Annotated[
    str | None,
    typer.Option(
        "--measured-at",
        metavar="TIME",
        help="Time of measurement in ISO 8601; UTC unless it names a zone.",
        callback=check_time,
    ),
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", help="Name of the data set the rows belong to.")]
LicenceOption = Annotated[str | None, typer.Option("--licence", help="License of the data set, as an SPDX identifier.")]
SearchSpaceOption = Annotated[str | None, typer.Option("--search-space", help="Search space of the timed configs.")]

_T4 = "t4 of a tuner: "
StatedOp = Annotated[str | None, typer.Option("--op", metavar="OP", help=f"{_T4}op, such as mm.")]
StatedB = Annotated[int, typer.Option("--b", metavar="B", min=1, help=f"{_T4}batch size.")]
StatedM = Annotated[int | None, typer.Option("--m", metavar="M", min=1, help=f"{_T4}rows of the result.")]
StatedN = Annotated[int | None, typer.Option("--n", metavar="N", min=1, help=f"{_T4}columns of the result.")]
StatedK = Annotated[int | None, typer.Option("--k", metavar="K", min=1, help=f"{_T4}the summed dimension.")]
StatedDtype = Annotated[str | None, typer.Option("--dtype", metavar="DTYPE", help=f"{_T4}dtype: bf16, fp16, fp32, ...")]
StatedLayout = Annotated[
    str, typer.Option("--layout", metavar="LETTERS", help=f"{_T4}layouts of A and B; n row-major, t transposed.")
]
StatedTemplate = Annotated[
    str | None,
    typer.Option("--template", metavar="UID", help=f"{_T4}name of the kernel.", show_default="kernel_tuner::OP"),
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
    """Return the context from the options' values.

    Raises:
        ImportFileError: the environment's file cannot be read, or the time is invalid.
    """
    from diode_store.exchange.context import ImportContext
    from diode_store.exchange.descriptions import environment_file, time_of
    from diode_store.records import Environment

    return ImportContext(
        hardware=hardware,
        environment=environment_file(environment) if environment else Environment(),
        measured_at=time_of(measured_at) if measured_at else None,
        dataset=dataset,
        licence=licence,
        search_space=search_space,
    )
