"""Probe the warehouse, because an idle daemon would not notice that its database is gone."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from diode_store.errors import DatabaseError

if TYPE_CHECKING:
    from diode_store.warehouse.store import Store

PROBE_INTERVAL_S = 3.0
"""Seconds from one probe to the next."""
PROBE_TIMEOUT_S = 5.0


def probe(store: Store, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Return once ``store`` has answered.

    A thread asks, because a server or file system that hangs may never return.

    Raises:
        DatabaseError: the database failed, or gave no answer within ``timeout_s``.
        SchemaError: the database has another schema revision by now.
    """
    answer: Future[None] = Future()

    def ask() -> None:
        try:
            store.check()
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            answer.set_exception(error)
        else:
            answer.set_result(None)

    threading.Thread(target=ask, name="diode-probe", daemon=True).start()
    try:
        answer.result(timeout_s)
    except TimeoutError:
        raise DatabaseError(f"{store.name}: no answer within {timeout_s:g} s; is it overloaded or suspended?") from None
