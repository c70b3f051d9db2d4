"""Look at the warehouse in a browser: read-only, and on this machine unless told otherwise."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from diode_collectors.ingest.commands.settings_options import SettingsOptions, options_of
from diode_explorer.needed import check_installed
from diode_store.console import DatabaseOption, make_app, print_note
from diode_store.errors import SettingsError
from diode_store.options import takes_options
from diode_store.settings import others_may_read
from diode_store.urls import Address, parse_address, redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_explorer.guarding import Guard

app = make_app(__doc__)

_FEWEST_CHARACTERS = 16
_HTTP = 80
"""A browser leaves this port out of what it calls the server."""
_TERMINATED = 128 + signal.SIGTERM
DEFAULT_LISTEN = Address("127.0.0.1", 8321)


@app.command(epilog="Example: diode serve --database warehouse.db")
@takes_options(options_of("spool"))
def serve(
    database: DatabaseOption,
    *,
    options: SettingsOptions,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to listen; port 0 takes any that is free.")
    ] = str(DEFAULT_LISTEN),
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="What a visitor must bring: the first line, of 16 characters or more, in a file of mode 0600. Needed"
            " for any address but this machine's own.",
        ),
    ] = None,
) -> None:
    """Serve pages about the warehouse until Ctrl-C.

    New measurements appear while a page is open. Nothing is written but the lake, the copy that queries read, and
    no page asks another machine for anything.
    """
    check_installed("starlette", "uvicorn", "jinja2")
    address = parse_address(listen)
    if address is None:
        raise SettingsError(f"--listen {listen!r} must be HOST:PORT, such as {DEFAULT_LISTEN}")
    token = None if token_file is None else _token(token_file)
    if token is None and not _is_own(address.host):
        raise SettingsError(f"--listen {address} is open to others; give a --token-file, or listen on {DEFAULT_LISTEN}")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    from diode_explorer.background import Background
    from diode_explorer.feed import Feed
    from diode_explorer.site import make_site

    spools = options.load().spool
    with _bound(address) as listening, Feed(database) as feed, Background(database) as background:
        bound = Address(*listening.getsockname()[:2])
        print_note(f"http://{bound}/ shows {sqlite_path(database) or redact(database)}; Ctrl-C ends it")
        _run(partial(make_site, feed, spools=spools, background=background), listening, bound, token)


def _run(make: Callable[..., Guard], listening: socket.socket, bound: Address, token: str | None) -> None:
    import uvicorn

    hosts = {str(bound).rpartition(":")[0], "localhost", "127.0.0.1", "[::1]"}
    names = {f"{host}:{bound.port}" for host in hosts} | (hosts if bound.port == _HTTP else set())
    # It restores this handler and raises the signal again; then what was opened is closed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    site = make(hosts=frozenset() if token else frozenset(names), token=token)
    config = uvicorn.Config(
        site,
        log_config=None,  # its lines go where the others do
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=200,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listening])


def _is_own(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(address: Address) -> socket.socket:
    """Return a socket that listens.

    Raises:
        SettingsError: the address is taken, or not this machine's.
    """
    try:
        return socket.create_server(tuple(address), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    except OSError as error:
        why = (os.strerror(error.errno) if error.errno else str(error)).lower()
        raise SettingsError(f"cannot listen on {address}: {why}; choose another --listen") from None


def _token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SettingsError: it cannot be read, others can read it, or it is short.
    """
    try:
        with path.open(encoding="utf-8") as file:
            is_open, token = others_may_read(file), file.readline().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"--token-file {path}: cannot be read ({getattr(error, 'strerror', None) or 'no text'})"
        ) from None
    if is_open:
        raise SettingsError(f"--token-file {path}: others can read it; chmod 600 {path}")
    if len(token) < _FEWEST_CHARACTERS or not token.isascii() or not token.isalnum():
        raise SettingsError(
            f"--token-file {path}: the first line must have {_FEWEST_CHARACTERS} letters and digits or more, such as"
            " `openssl rand -hex 16` prints"
        )
    return token
