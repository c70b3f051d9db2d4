"""Serve health, readiness and metrics over HTTP: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client.exposition import choose_encoder

from diode_collectors.ingest.monitoring.logs import LOGGER_NAME, log
from diode_collectors.ingest.monitoring.observer import Observer
from diode_store.errors import SettingsError
from diode_store.system.urls import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diode_collectors.ingest.monitoring.health import Health
    from diode_collectors.ingest.monitoring.metrics import Metrics

_logger = logging.getLogger(f"{LOGGER_NAME}.ingest")
_TEXT = "text/plain; charset=utf-8"
_REQUEST_S = 10.0
"""Seconds that a client may take for its whole request, and again for taking its answer."""
_MOST_AT_ONCE = 16
_MOST_SCRAPES = 2
"""Limit on simultaneous answers of ``/metrics``, which look at disks. If a disk hangs, ``/healthz`` still answers."""


class StatusServer(Observer):
    """HTTP server that answers in threads of its own, from the daemon's start until ``close``."""

    def __init__(self, address: Address, health: Health, metrics: Metrics, database_file: Path | None) -> None:
        """Prepare; the port is bound once the daemon has locked its spools.

        Args:
            address: address to listen on; port 0 takes any free port.
            health: source of ``/healthz`` and ``/readyz``.
            metrics: source of ``/metrics``.
            database_file: the SQLite file, whose disk is watched; None for a warehouse elsewhere.
        """
        self._wanted = address
        self._health = health
        self._metrics = metrics
        self._database_file = database_file
        self._server: _Server | None = None
        self._scrapes = threading.BoundedSemaphore(_MOST_SCRAPES)
        self._failing: dict[str, str] = {}
        """Path → error of answers that fail, which is logged once and not at every scrape."""

    @property
    def address(self) -> Address | None:
        """Address that the server listens on; None while it does not."""
        return Address(*self._server.server_address[:2]) if self._server else None  # type: ignore[arg-type]

    def started(self, spools: Sequence[Path]) -> None:
        """Bind the port and start to answer.

        Raises:
            SettingsError: the address is in use, or is not one of this machine.
        """
        self._metrics.watch(spools, self._database_file)
        try:
            self._server = _Server(self._wanted, self._answer)
        except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is too long
            reason = getattr(error, "strerror", None) or "no such host"
            raise SettingsError(
                f"cannot listen on {self._wanted}: {reason}; name another address with --listen HOST:PORT, or `off`"
            ) from error
        log(_logger, logging.INFO, "listening", address=self.address)
        threading.Thread(target=self._server.serve_forever, name="diode-http", daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        try:
            answer = self._look_up(path, accept)
        except Exception as error:  # noqa: BLE001 - whatever it is, it goes to the client and the log
            if self._failing.get(path) != repr(error):
                self._failing[path] = repr(error)
                _log_failure("not_answered", error, path=path)
            return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"this failed; see event=not_answered in the daemon's log\n"
        self._failing.pop(path, None)
        return answer

    def _look_up(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics":
            if not self._scrapes.acquire(blocking=False):
                return _verdict(["earlier scrapes are not answered yet; a disk may hang"], "")
            try:
                encode, kind = choose_encoder(accept)
                return HTTPStatus.OK, kind, encode(self._metrics.registry)
            finally:
                self._scrapes.release()
        if path == "/healthz":
            hung = self._health.hung()
            return _verdict([hung] if hung else [], "ok")
        if path == "/readyz":
            return _verdict(self._health.problems(), "ready")
        return HTTPStatus.NOT_FOUND, _TEXT, b"there are /healthz, /readyz and /metrics\n"


def _log_failure(event: str, error: BaseException | None, **fields: object) -> None:
    _logger.error(event, exc_info=error, extra={"fields": {**fields, "error": repr(error)}})


def _verdict(problems: Sequence[str], good: str) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
    return status, _TEXT, "".join(f"{line}\n" for line in problems or [good]).encode()


class _Server(ThreadingHTTPServer):
    """Answers each connection in a thread; a slow client loses its place to the next one."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, answer: Callable[[str, str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._look_up = answer
        self._lock = threading.Lock()
        self._began: dict[socket.socket, float] = {}
        """Open connections → when each began, the oldest first."""
        self._working: set[socket.socket] = set()
        """Connections that wait for this process, not for their client."""
        super().__init__(tuple(address), _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # HTTPServer's own method asks the name service for this machine's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; among too many connections, drop the one that has waited longest for its client."""
        with self._lock:
            if len(self._began) >= _MOST_AT_ONCE:
                self._drop(self._idle()[:1])
            if has_room := len(self._began) < _MOST_AT_ONCE:
                self._began[request] = time.monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def answer(self, request: socket.socket, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        """Return the answer to a complete request. Its connection does not count as idle meanwhile.

        Raises:
            ConnectionAbortedError: the connection was dropped, and a request that ends early looks complete.
        """
        with self._lock:
            if request not in self._began:
                raise ConnectionAbortedError
            self._working.add(request)
        try:
            return self._look_up(path, accept)
        finally:
            self._working.discard(request)

    def service_actions(self) -> None:
        """Drop connections past their deadline; the accepting thread calls this twice a second."""
        latest = time.monotonic() - _REQUEST_S
        with self._lock:
            self._drop([each for each in self._idle() if self._began[each] < latest])

    def shutdown_request(self, request: Any) -> None:
        """Close a connection under the lock, because another connection may get its descriptor right afterwards."""
        with self._lock:
            self._began.pop(request, None)
            super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and drop every connection."""
        super().server_close()
        with self._lock:
            self._drop(list(self._began))

    def _idle(self) -> list[socket.socket]:
        return [each for each in self._began if each not in self._working]

    def _drop(self, requests: list[socket.socket]) -> None:
        """Wake the threads of connections; each sees the end of its connection and closes it."""
        for request in requests:
            del self._began[request]
            with contextlib.suppress(OSError):  # the client has gone already
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error, unless the client merely disconnected."""
        del request
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            _log_failure("http_failed", error, client=client_address[0])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "diode-ingest"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with a body."""
        self.wfile.write(self._head())

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._head()

    def _head(self) -> bytes:
        path, accept = self.path.partition("?")[0], self.headers.get("Accept", "")
        status, kind, body = self.server.answer(self.connection, path, accept)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return body

    def log_message(self, *args: object) -> None:
        """Log no requests: a scrape comes every few seconds."""
