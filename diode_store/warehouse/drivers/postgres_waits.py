"""Limit every wait for a PostgreSQL server.

TCP keeps a connection to a suspended server alive, and so does a proxy that stalls: libpq would wait forever. So a
silent connection asks a second one whether the server still works on its statement. A slow statement goes on. A dead
connection ends in an error, which names the finding. The dead connection's backend, whose transaction may hold locks
for hours, is ended as soon as the server can be reached.

Importing this module needs psycopg.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, Self

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

SILENCE_S = 2.0
"""Time without a byte in either direction after which a connection asks for its statement."""
ASK_TIMEOUT_S = 4
"""Longest wait of the second connection."""

# A backend that waits for its client while the client waits for the backend has a stalled network between them.
_IS_WORKING = """
SELECT state = 'disabled' OR state = 'active' AND wait_event_type IS DISTINCT FROM 'Client'
FROM pg_stat_activity WHERE pid = %s
"""
# A pooler makes up the numbers of backends, so nothing can be told of one.
_OWN_PID = "SELECT pg_backend_pid()"
# The further conditions keep a backend safe that got the number of one that is gone.
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = ANY(%s) AND usename = current_user AND wait_event_type = 'Client'
"""
_SUSPENDED = "no answer, and none to a second connection; resume the server, or check the network"
_STALLED = "the server answers a second connection, but this one is dead; check the proxy or firewall in between"


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose every wait ends, with an answer or with ``psycopg.OperationalError``.

    The error closes the connection, so that SQLAlchemy's pool replaces it.
    """

    is_idle_in_pool = False
    """True while the pool holds the connection. The pool pings it before use and opens the second one itself."""
    _options: dict[str, Any]
    _dead: ClassVar[dict[tuple[str, int], list[int]]] = {}
    """Host and port → backends that are still to be ended."""

    @classmethod
    def connect(cls, *args: Any, **options: Any) -> Self:
        """Connect as ``psycopg.Connection.connect`` does, and end what dead connections have left on the server."""
        connection = super().connect(*args, **options)
        connection._options = options  # noqa: SLF001 - the class's own
        place = connection.info.host, connection.info.port
        if dead := cls._dead.get(place):
            connection.execute(_END, [dead])
            connection.commit()
            cls._dead.pop(place, None)
        return connection

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        """Wait as ``psycopg.Connection.wait`` does, but not forever."""
        return super().wait(_watched(gen, self._end_if_dead), *args, **options)

    def _end_if_dead(self) -> None:
        problem = _SUSPENDED if self.is_idle_in_pool else self._problem()
        if problem:
            self.close()
            raise psycopg.OperationalError(problem)

    def _problem(self) -> str | None:
        """Return the problem of this connection or its server; None if there is none."""
        host, port, pid = self.info.host, self.info.port, self.info.backend_pid
        there = {"host": host, "port": port, "connect_timeout": ASK_TIMEOUT_S}
        try:
            with _AskingConnection.connect(**{**self._options, **there}) as second:
                own = second.execute(_OWN_PID).fetchone()
                if own != (second.info.backend_pid,):
                    return None
                row = second.execute(_IS_WORKING, [pid]).fetchone()
                if row and row[0]:
                    return None
                second.execute(_END, [[pid]])
                return _STALLED
        except psycopg.OperationalError as error:
            # A server that refuses, because it has no connection left say, is not silent.
            if "FATAL" in str(error):
                return None
            self._dead.setdefault((host, port), []).append(pid)
            return _SUSPENDED


class _AskingConnection(psycopg.Connection[Any]):
    """The second connection; its own silence is an answer."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        return super().wait(_watched(gen, self._give_up), *args, **options)

    def _give_up(self) -> None:
        self.close()
        raise psycopg.OperationalError(_SUSPENDED)


def _watched(gen: Generator[Any, Any, Any], on_silence: Callable[[], None]) -> Generator[Any, Any, Any]:
    """Yield what ``gen`` yields, and call ``on_silence`` after each ``SILENCE_S`` without a ready socket.

    psycopg sends the socket's readiness into ``gen``, or zero several times a second while there is none.
    """
    heard_at = time.monotonic()
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SILENCE_S:
                on_silence()
                heard_at = time.monotonic()
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value
