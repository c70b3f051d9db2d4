"""The warehouse of kernel timings: vocabulary, wire format, schema, storage and analytics.

``diode_store.open()`` queries it from Python, see docs/python.md. Nothing heavy is imported before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diode_store.query.api import open_warehouse as open  # noqa: A004 - diode_store.open, as in gzip.open

    __version__: str

__all__ = ["__version__", "open"]


def __getattr__(name: str) -> Any:
    """Import ``open`` or ``__version__`` on first use."""
    if name == "open":
        from diode_store.query.api import open_warehouse

        return open_warehouse
    if name == "__version__":
        from importlib.metadata import version

        return version("torch-diode")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, for completion."""
    return __all__
