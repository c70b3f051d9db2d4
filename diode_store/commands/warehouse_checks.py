"""Checks of `diode doctor`: versions, the warehouse, and the cache beside it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from diode_store.command_line.diagnosis import Finding, ok, problem, problem_of, warning
from diode_store.errors import DiodeError
from diode_store.system.files import barrier_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.cache.cache import Cache
    from diode_store.cache.source import WarehouseRows
    from diode_store.command_line.diagnosis import Setup

_NEEDED = ("torch-diode", "torch", "duckdb", "pyarrow", "sqlalchemy")
_COUNTED = ("measurements", "problems", "hardware")


def check_versions(_setup: Setup) -> Iterator[Finding]:
    """Yield the versions of Python and of the important packages, without importing them."""
    yield ok("Python", platform.python_version())
    for name in _NEEDED:
        try:
            yield ok(name, version(name))
        except PackageNotFoundError:
            yield problem(name, "not installed", "run `pip install torch-diode`")


def check_warehouse(setup: Setup) -> Iterator[Finding]:
    """Yield findings about the warehouse: whether it can be read, its size, and whether its cache is up to date."""
    from diode_store.cache.cache import cache_of
    from diode_store.cache.opening import open_source
    from diode_store.command_line.diagnosis import on_a_network
    from diode_store.system.settings import upgrade_command
    from diode_store.system.urls import is_published, sqlite_path

    if setup.database is None:
        return
    try:
        if is_published(setup.database):
            yield _published(setup.database)
            return
        file = sqlite_path(setup.database)
        yield from on_a_network(file)
        if file is not None and not file.exists():
            yield warning("warehouse", f"{file}: there is none yet", f"create it with {upgrade_command(str(file))}")
            return
        cache = cache_of(setup.database)
        with open_source(setup.database) as source:
            yield _contents(setup.database, source)
            yield _cache(cache, source)
    except DiodeError as error:
        yield problem_of("warehouse", error, "check the address, and that the server runs and takes connections")


def _published(database: str) -> Finding:
    from diode_store.delta.address import Address
    from diode_store.delta.table import open_table

    address = Address.parse(database)
    table = open_table(address.url)
    return ok("warehouse", f"{address}: a published table, version {table.version()}; commands can only read it")


def _contents(database: str, source: WarehouseRows) -> Finding:
    from diode_store.cache.layout import REVISION
    from diode_store.system.urls import redact, sqlite_path

    with source.snapshot():
        counts = {name: next(source.rows(f"SELECT count(*) FROM {name}"))[0] for name in _COUNTED}  # noqa: S608 - our own names
    shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    where = sqlite_path(database) or redact(database)
    return ok("warehouse", f"{where}: revision {REVISION}, {shown}")


def _cache(cache: Cache, source: WarehouseRows) -> Finding:
    from diode_store.cache.status import cache_status
    from diode_store.cache.sync import holds_the_same

    barrier = barrier_to(cache.path)
    try:
        state = cache.state()
        if state is None and barrier:
            return problem("cache", f"{cache}: cannot be made: {barrier}", "set DIODE_CACHE to a folder of your own")
        if state is None:
            return ok("cache", f"{cache}: there is none yet; the first query creates it")
        status = cache_status(cache)
        fresh = holds_the_same(state, source)
    except DiodeError as error:
        return problem_of("cache", error)
    if status.damage:
        return warning("cache", f"{cache}: {status.damage}", "run `diode sync`, or ask a query, which repairs it")
    if barrier:
        remedy = "set DIODE_CACHE to a folder of your own, or read it as it is with --no-sync"
        return warning("cache", f"{cache}: cannot be synced: {barrier}", remedy)
    said = "up to date" if fresh else f"behind since {status.synced_at:%Y-%m-%d %H:%M} UTC; the next query syncs it"
    return ok("cache", f"{cache}: {status.timings:,} timings, {said}")
