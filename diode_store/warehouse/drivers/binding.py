"""Values on their way into a database's driver: an error here is the record's fault, not the database's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from diode_store.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNBINDABLE = (OverflowError, TypeError, ValueError, RecursionError)
"""Errors that conversions and drivers raise for a value, besides the driver's own."""
# Drivers raise the same class for a value they have no conversion for as for a closed connection.
_NO_CONVERSION = ("Error binding parameter", "cannot adapt type")


@contextmanager
def binding() -> Iterator[None]:
    """Turn what converting a value raises into a ``RecordError``; nothing but the conversion belongs inside."""
    try:
        yield
    except UNBINDABLE as error:
        raise unstorable(str(error)) from error


def is_unbindable(error: BaseException, driver_error: type[BaseException], data_error: type[BaseException]) -> bool:
    """Return whether ``error``, raised while a statement ran, is about one of its values.

    Args:
        error: the error.
        driver_error: base class of the driver's errors.
        data_error: the driver's class for values that do not fit.
    """
    if isinstance(error, driver_error):
        return isinstance(error, data_error) or str(error).startswith(_NO_CONVERSION)
    return isinstance(error, UNBINDABLE)


def unstorable(reason: str) -> RecordError:
    """Return the error for a value that the database cannot store."""
    return RecordError(f"a value of the batch cannot be stored: {' '.join(reason.split())}")
