"""A TCP proxy in front of a server, which falls silent on demand while it keeps every connection open."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK_BYTES = 65_536


class StallingProxy:
    """Forwards between its own port and the server's until it stalls.

    with StallingProxy(server.port) as proxy:
        proxy.stall_at(b"COPY ")  # on the first client that sends these bytes, which do not arrive
        assert proxy.stalled.wait(30)
        proxy.resume()
    """

    def __init__(self, server_port: int) -> None:
        self.stalled = threading.Event()
        self._flows: list[threading.Event] = []
        self._stalls_new = False
        self._server_port = server_port
        self._trigger = b""
        self._action: Callable[[], None] = self.stall
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Cut every connection."""
        self.resume()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def stall(self) -> None:
        """Forward nothing from now on, neither on open connections nor on new ones."""
        self._stalls_new = True
        self.stall_open()

    def stall_open(self) -> None:
        """Forward nothing from now on on the connections that are open; new ones work."""
        for flows in self._flows:
            flows.clear()

    def resume_new(self) -> None:
        """Forward on new connections; those that were open stay silent, and their ends never hear of it."""
        self._stalls_new = False

    def resume(self) -> None:
        """Forward again, beginning with what was held back."""
        self.resume_new()
        for flows in self._flows:
            flows.set()

    def stall_at(self, sent: bytes, action: Callable[[], None] | None = None) -> None:
        """Stall, or do something else, as soon as a client sends ``sent``; ``stalled`` tells that it happened."""
        self.stalled.clear()
        self._action = action or self.stall
        self._trigger = sent

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            flows = threading.Event()
            self._flows.append(flows)
            self._sockets += [client, server]
            if not self._stalls_new:
                flows.set()
            self._start(self._forward, client, server, flows, self._look)
            self._start(self._forward, server, client, flows, lambda _: None)

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        flows: threading.Event,
        look: Callable[[bytes], None],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                look(data)
                flows.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _look(self, data: bytes) -> None:
        if self._trigger and self._trigger in data:
            self._trigger = b""
            self._action()
            self.stalled.set()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=work, args=arguments, daemon=True).start()
