"""Health, readiness and metrics over HTTP: ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

from prometheus_client.exposition import choose_encoder

from diode_collectors.ingest.monitoring.logs import LOGGER_NAME, log
from diode_collectors.ingest.monitoring.observer import Observer
from diode_store.errors import SettingsError
from diode_store.urls import Address

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from diode_collectors.ingest.monitoring.health import Health
    from diode_collectors.ingest.monitoring.metrics import Metrics

_logger = logging.getLogger(f"{LOGGER_NAME}.ingest")
_TEXT = "text/plain; charset=utf-8"
_REQUEST_S = 10
_MOST_AT_ONCE = 16


class StatusServer(Observer):
    """The HTTP server; it answers in threads of its own from the daemon's start until ``close``."""

    def __init__(self, address: Address, health: Health, metrics: Metrics, database_file: Path | None) -> None:
        """Prepare; the port is bound once the daemon has locked its spools.

        Args:
            address: where to listen; port 0 takes any that is free.
            health: what ``/healthz`` and ``/readyz`` ask.
            metrics: what ``/metrics`` shows.
            database_file: the SQLite file, whose disk is watched; None for a warehouse elsewhere.
        """
        self._wanted = address
        self._health = health
        self._metrics = metrics
        self._database_file = database_file
        self._server: _Server | None = None
        self._failing: dict[str, str] = {}
        """Path → error of answers that fail: logged once, not at every scrape."""

    @property
    def address(self) -> Address | None:
        """Where it listens; None while it does not."""
        return Address(*self._server.server_address[:2]) if self._server else None  # type: ignore[arg-type]

    def started(self, spools: Sequence[Path]) -> None:
        """Bind and begin to answer.

        Raises:
            SettingsError: the address is in use, or not this machine's.
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
            encode, kind = choose_encoder(accept)
            return HTTPStatus.OK, kind, encode(self._metrics.registry)
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
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: Address, answer: Callable[[str, str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self.answer = answer
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        super().__init__(tuple(address), _Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for this machine's name.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection when too many are being answered."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what went wrong, unless the client merely disconnected."""
        del request
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            _log_failure("http_failed", error, client=client_address[0])


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[int] = _REQUEST_S
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
        status, kind, body = self.server.answer(self.path.partition("?")[0], self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return body

    def log_message(self, *args: object) -> None:
        """Log no requests: there is a scrape every few seconds."""
