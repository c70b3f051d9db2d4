"""Look at the warehouse in a browser: read-only, and on this machine unless told otherwise."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import socket
from functools import partial
from pathlib import Path  # noqa: TC003 - Typer reads the annotations when it runs
from typing import TYPE_CHECKING, Annotated

import typer

from diode_collectors.ingest.commands.settings_options import SettingsOptions, options_of
from diode_explorer.needed import check_installed
from diode_store.command_line.console import DatabaseOption, make_app, print_note
from diode_store.command_line.options import takes_options
from diode_store.errors import SettingsError
from diode_store.system.settings import others_may_read
from diode_store.system.urls import Address, parse_address, redact, sqlite_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_explorer.guarding import Guard

app = make_app(__doc__)

_FEWEST_CHARACTERS = 16
_HTTP = 80
"""HTTP's own port, which a browser leaves out of the ``Host`` header."""
DEFAULT_LISTEN = Address("127.0.0.1", 8321)


@app.command(epilog="Example: diode serve --database warehouse.db")
@takes_options(options_of("spool"))
def serve(
    database: DatabaseOption,
    *,
    options: SettingsOptions,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            "--port",
            metavar="[HOST:]PORT",
            help="Address to listen on, or a port of this machine alone. Port 0 takes any free port.",
        ),
    ] = str(DEFAULT_LISTEN),
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File of mode 0600. Its first line, of 16 letters and digits or more, is the token that a visitor must"
            " bring. Needed for any address that other machines can reach.",
        ),
    ] = None,
) -> None:
    """Serve pages about the warehouse until Ctrl-C.

    New measurements appear while a page is open. The server writes only the cache, the copy that queries read. No page
    loads anything from another machine.
    """
    check_installed("starlette", "uvicorn", "jinja2")
    address = parse_address(f"{DEFAULT_LISTEN.host}:{listen}" if listen.isdigit() else listen)
    if address is None:
        raise SettingsError(f"--listen {listen!r} must be PORT or HOST:PORT, such as {DEFAULT_LISTEN}")
    token = None if token_file is None else _token(token_file)
    if token is None and not _is_own(address.host):
        raise SettingsError(
            f"other machines can reach --listen {address}; give a --token-file, or listen on {DEFAULT_LISTEN}"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    from diode_explorer.background import Background
    from diode_explorer.feed import Feed
    from diode_explorer.site import make_site

    spools = options.load().spool
    with _bound(address) as listening, Feed(database) as feed, Background(database) as background:
        bound = Address(*listening.getsockname()[:2])
        print_note(f"http://{bound}/ shows {sqlite_path(database) or redact(database)}; Ctrl-C ends it")
        try:
            _run(partial(make_site, feed, spools=spools, background=background), listening, bound, token)
        finally:
            print_note("stopped")


def _run(make: Callable[..., Guard], listening: socket.socket, bound: Address, token: str | None) -> None:
    import uvicorn

    from diode_explorer.prompt import MOST_CONNECTIONS, PromptProtocol

    hosts = {str(bound).rpartition(":")[0], "localhost", "127.0.0.1", "[::1]"}
    names = {f"{host}:{bound.port}" for host in hosts} | (hosts if bound.port == _HTTP else set())
    site = make(hosts=frozenset() if token else frozenset(names), token=token)
    config = uvicorn.Config(
        site,
        log_config=None,  # its lines go to the common log
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        http=PromptProtocol,
        ws="none",
    )
    uvicorn.Server(config).run(sockets=[listening])


def _is_own(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(address: Address) -> socket.socket:
    """Return a listening socket.

    Raises:
        SettingsError: the port is in use, or the address is not this machine's.
    """
    try:
        return socket.create_server(tuple(address), family=socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = "choose another with --port, such as --port 0 for any free one"
            raise SettingsError(f"port {address.port} of {address.host} is in use; {free}") from None
        why = (os.strerror(error.errno) if error.errno else str(error)).lower()
        raise SettingsError(f"cannot listen on {address}: {why}; name an address of this machine") from None


def _token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SettingsError: the file is unreadable, others can read it, or the token is short.
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
