"""HTTP with deadlines for clients: slow ones neither occupy every connection nor keep one forever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST_CONNECTIONS = 200
_PATIENCE_S = 10.0
"""Deadline for a client to send a whole request, and to accept each part of the answer."""


class PromptProtocol(H11Protocol):
    """Drop connections whose client is late, and the longest waiting one if there are too many."""

    deadline: asyncio.TimerHandle | None = None
    """Timer that runs while the connection waits for its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request. If all places are taken, drop the connection that has waited longest."""
        super().connection_made(transport)
        if len(self.connections) >= MOST_CONNECTIONS:
            others = (each for each in self.connections if isinstance(each, PromptProtocol) and each.deadline)
            longest = min(others, key=lambda each: each.deadline.when() if each.deadline else 0.0, default=None)
            if longest is not None:
                longest.drop()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._go_on()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle arrived data. Only a complete request ends the deadline."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._go_on()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one."""
        self._wait()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait until the client accepts the sent data."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Continue sending."""
        self._go_on()
        super().resume_writing()

    def drop(self) -> None:
        """Close the connection at once."""
        self._go_on()
        self.connections.discard(self)
        self.transport.abort()

    def _wait(self) -> None:
        self._go_on()
        self.deadline = self.loop.call_later(_PATIENCE_S, self.drop)

    def _go_on(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
