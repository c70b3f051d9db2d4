"""What `diode serve` does with requests that no browser makes: byte by byte, to a real server."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.warehouse.store import Store
from lanes import long
from served import Site, ended, started

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS = b"Connection: close\r\n\r\n"
NOTHING, WRITES = "there is nothing at this address", "this site is read-only"
MALFORMED = "Invalid HTTP request received."


@pytest.fixture(scope="module")
def site(_template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a server over one measurement."""
    database = shutil.copy(_template_database, tmp_path_factory.mktemp("strange") / "warehouse.db")
    with Store.open(str(database)) as store:
        store.write([samples.measurement(1)])
    found = started(str(database))
    yield found
    ended(found)


def said_to(site: Site, request: bytes) -> tuple[int, str]:
    """Send bytes as they are, and return the status and the whole answer."""
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    return int(answer.split()[1]), answer


def asking(site: Site, line: str | bytes, *headers: str | bytes) -> bytes:
    """Return a request with this first line, to the right host."""
    lines = [line, f"Host: 127.0.0.1:{site.port}", *headers]
    return b"".join((each if isinstance(each, bytes) else each.encode()) + b"\r\n" for each in lines) + _ENDS


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("line", "status", "why"),
    [
        ("GET http://evil.example/overview HTTP/1.1", 404, NOTHING),
        ("OPTIONS * HTTP/1.1", 405, WRITES),
        ("CONNECT evil.example:443 HTTP/1.1", 405, WRITES),
        ("TRACE /overview HTTP/1.1", 405, WRITES),
        ("PUT /static/site.js HTTP/1.1", 405, WRITES),
        ("MKCOL /static/new HTTP/1.1", 405, WRITES),
        (f"GET /{'a' * 100_000} HTTP/1.1", 414, "this address is too long"),
        (f"GET /overview?{'&' * 100} HTTP/1.1", 414, "this address is too long"),
        ("GET //overview HTTP/1.1", 404, NOTHING),
        ("GET /overview/ HTTP/1.1", 404, NOTHING),
        ("GET /over%00view HTTP/1.1", 404, "there is no such page"),
        ("GET /%ff%fe HTTP/1.1", 404, "there is no such page"),
        ("GET /overview/devices%2f..%2f..%2fsite.csv HTTP/1.1", 404, NOTHING),
        ("GET /overview/%00.csv HTTP/1.1", 404, "Overview has gains, devices"),
        ("GET /static/..%2f..%2fsite.py HTTP/1.1", 404, NOTHING),
        ("GET /static/%2e%2e/%2e%2e/site.py HTTP/1.1", 404, NOTHING),
        ("GET /static//etc/passwd HTTP/1.1", 404, NOTHING),
        ("GET /static/%00 HTTP/1.1", 404, NOTHING),
        ("GET /static/ HTTP/1.1", 404, NOTHING),
        (f"GET /static/{'a' * 3000} HTTP/1.1", 404, NOTHING),
        ("GET /overview?device=a&device=b HTTP/1.1", 400, "device is given twice"),
        ("GET /overview?device=%1b[31m HTTP/1.1", 400, "device is too long, or not printable"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else None,
)
def test_a_refusal(site: Site, line: str, status: int, why: str) -> None:
    """Has a page that says why, and one line in the log, in which nothing can begin another."""
    before = len(site.log)
    answered, page = said_to(site, asking(site, line))
    assert (answered, f"<h1>{status}</h1>" in page, why in page) == (status, True, True)
    (logged,) = site.log[before:].splitlines()
    assert (f" WARNING refused {line.split(maxsplit=1)[0]} " in logged, why in logged, logged.isprintable()) == (
        True,
    ) * 3


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "request_of",
    [
        lambda _site: b"GET /overview HTTP/1.1\r\n" + _ENDS,
        lambda site: asking(site, "GET /overview HTTP/1.1", "Host: evil.example"),
        lambda site: asking(site, "GET /overviéw HTTP/1.1"),
        lambda site: asking(site, "GET /overview HTTP/1.1", "Content-Length: -1"),
        lambda site: asking(site, "GET /overview HTTP/1.1", b"X: \x00"),
        lambda _site: b"\x00\x01garbage\r\n\r\n",
        lambda _site: bytes.fromhex("1603010200010001fc0303") + b"a" * 100,
    ],
    ids=["no host", "two hosts", "not ascii", "length", "nul", "garbage", "tls"],
)
def test_what_is_no_request(site: Site, request_of: type[bytes]) -> None:
    """Is refused before anything is made of it, and leaves one line in the log like the others."""
    before = len(site.log)
    status, answer = said_to(site, request_of(site))
    assert (status, answer.rpartition("\n")[2]) == (400, MALFORMED)
    (logged,) = site.log[before:].splitlines()
    assert logged.endswith(f" WARNING {MALFORMED}")


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 5", "\r\nhello"),
        ("Expect: 100-continue", "Content-Length: 5"),
        (b'Cookie: \xff\xfe; a="\xe9', b"Authorization: \xff"),
        ("Accept-Encoding: gzip;q=x, *", "Accept: ,,,"),
        ("Forwarded: for=evil", "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: https"),
        ("X-HTTP-Method-Override: DELETE",),
        ("Range: bytes=0-1,9999-",),
    ],
)
def test_what_comes_beside_a_request(site: Site, headers: tuple[str | bytes, ...]) -> None:
    """Changes nothing: bodies, odd headers, what a proxy may have said."""
    status, page = said_to(site, asking(site, "GET /overview HTTP/1.1", *headers))
    assert (status, "<h1>Overview</h1>" in page, "evil" in page) == (200, True, False)


def test_another_site_opens_no_socket(site: Site) -> None:
    """A WebSocket handshake is a request like any other, whatever libraries are installed."""
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Origin: http://evil.example")
    status, page = said_to(site, asking(site, "GET /live HTTP/1.1", *upgrade, "Sec-WebSocket-Key: dGhlIHNhbXBsZQ=="))
    assert (status, "the request comes from another site" in page) == (403, True)


def test_nothing_is_written(site: Site) -> None:
    """By any method, to any address: the warehouse stays as it is, byte by byte."""
    before = Path(site.database).read_bytes()
    for method in ("POST", "PUT", "PATCH", "DELETE", "PROPPATCH"):
        for path in ("/overview", "/live", "/static/site.js", "/overview/devices.csv", "/"):
            status, _ = said_to(site, asking(site, f"{method} {path} HTTP/1.1", "Content-Length: 0"))
            assert status == 405
    for sql in ("'; DROP TABLE timings; --", "' UNION SELECT * FROM read_csv('/etc/passwd') --", "$device"):
        assert site.get(f"/overview?device={sql.replace(' ', '+')}").status == 200
    assert Path(site.database).read_bytes() == before


def _dripping(site: Site, count: int) -> list[socket.socket]:
    """Return connections that have sent a part of a request."""
    found = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(count)]
    for each in found:
        each.sendall(b"GET /live HTTP/1.1\r\nX-Slow: ")
    return found


@pytest.mark.long
def test_slow_connections_lose_their_places(site: Site) -> None:
    """However many clients drip, whoever sends a whole request is answered; the oldest of them go first."""
    slow = _dripping(site, 250)
    try:
        assert site.get("/live").status == 200
        slow[0].settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert slow[0].recv(1) == b""
        slow[-1].sendall(b"\r\nHost: localhost:%d\r\n\r\n" % site.port)
        assert slow[-1].recv(12) == b"HTTP/1.1 200"
    finally:
        for each in slow:
            each.close()


@long
def test_a_request_has_one_deadline(site: Site) -> None:
    """A client that goes on sending a byte now and then is dropped when the time for a whole request is over."""
    (slow,) = _dripping(site, 1)
    began = time.monotonic()
    with slow, contextlib.suppress(ConnectionError):
        while select.select([slow], [], [], 0.1)[0] == [] and time.monotonic() - began < 30:
            slow.sendall(b"x")
    assert 9 <= time.monotonic() - began < 15
