"""Write the pages of `diode serve` as files, for a wiki or a pull request."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated
from urllib.parse import parse_qsl, urlsplit

import typer

from diode_explorer.needed import check_installed
from diode_store.command_line.console import DatabaseOption, JsonOption, make_app, print_json, progress
from diode_store.command_line.render import counted
from diode_store.errors import QueryError, ReportError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_explorer.feed import State
    from diode_trainer.report.questions import Value

app = make_app(__doc__)

_LIMIT_S = 600.0
"""Limit for one query. No visitor waits for it."""


@app.command(epilog="Example: diode report --hardware h200 -o out")
def report(
    database: DatabaseOption,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the report; replaces an earlier report.")
    ],
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            metavar="NAME",
            help="Device that pages show: an alias, a name, or the beginning of a name.",
            show_default="each page's own",
        ),
    ] = None,
    page: Annotated[
        list[str] | None,
        typer.Option(
            "--page",
            metavar="ADDRESS",
            help="Add a page by its address in `diode serve` without the host, such as '/coverage?dtype=bfloat16'."
            " Can be repeated.",
        ),
    ] = None,
    problems: Annotated[
        int,
        typer.Option(
            "--problems",
            metavar="N",
            min=0,
            help="Number of pages of single problems; the first N that other pages link to.",
        ),
    ] = 30,
    as_json: JsonOption = False,
) -> None:
    """Write the pages as a folder of files, each complete in itself; index.html is the first.

    Reports of equal data are equal to the last byte. The intake page is left out, since it shows the present moment.
    """
    _check(output)
    from diode_explorer.report import write

    files = _files(database, hardware, [_page(address) for address in page or ()], problems)
    write(files, output)
    if as_json:
        print_json({"folder": str(output), "pages": sorted(files)})
        return
    size = sum(map(len, files.values()))
    typer.echo(f"{output / 'index.html'}: {counted(len(files), 'page')}, {size / 2**20:.1f} MiB")


def _check(output: Path) -> None:
    """Check that the report can be made and written, before any work.

    Raises:
        SettingsError: packages of the extra ``web`` are missing.
        ReportError: packages that draw pictures are missing, or the folder is not writable.
    """
    from diode_store.system.files import barrier_to
    from diode_trainer.report.drawing import check_installed as check_drawing

    check_installed("jinja2")
    check_drawing()
    if output.is_file():
        raise ReportError(f"-o {output} is a file; name a folder")
    if barrier := barrier_to(output):
        raise ReportError(f"{barrier}, so the report cannot be written there; name another folder with -o")


def _files(
    database: str, hardware: str | None, more: Sequence[tuple[str, Mapping[str, Value]]], problems: int
) -> dict[str, bytes]:
    """Return the files of the report by name."""
    from diode_explorer.background import Background
    from diode_explorer.report import pages_of

    with progress("reading the cache"):
        state = _state(database)
        device = None if hardware is None else _device(state, hardware)
    files = {}
    with progress("writing pages") as advance, Background(database) as background:
        for name, content in pages_of(state, background, device, more, problems):
            files[name] = content
            advance(1)
    return files


def _state(database: str) -> State:
    from diode_explorer.feed import State
    from diode_store.cache.cache import cache_of
    from diode_store.cache.sync import sync

    cache = cache_of(database)
    sync(database, cache)
    return State(cache, _LIMIT_S, threads=1)


def _device(state: State, name: str) -> str:
    """Return the name of the one device that a name stands for.

    Raises:
        HardwareError: the device is unknown, or the name stands for several.
        QueryError: the device has no timings.
    """
    from diode_store.devices.known import ambiguous
    from diode_store.query.named_devices import named_devices

    (found, *others) = named_devices(state.connection, name, all_matches=None)
    if others:
        raise ambiguous(name, (found, *others))
    if not state.connection.execute("FROM best_times WHERE hardware_id = $1 LIMIT 1", [found.id]).fetchall():
        raise QueryError(f"{found.name} has no valid timings; `diode hardware list` shows which devices do")
    return found.name


def _page(address: str) -> tuple[str, Mapping[str, Value]]:
    """Return the page and the parameters of an address.

    Raises:
        ReportError: there is no such page.
        AddressError: the page has no such parameters.
    """
    from diode_explorer.pages import PAGES

    parts = urlsplit(address)
    page = PAGES.get(parts.path.strip("/"))
    if page is None or page.is_live:
        names = ", ".join(f"/{each.name}" for each in PAGES.values() if not each.is_live)
        raise ReportError(f"--page {address}: there is no such page; the pages are {names}")
    return page.name, page.parse(parse_qsl(parts.query, keep_blank_values=True))
