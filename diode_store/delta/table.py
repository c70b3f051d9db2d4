"""Open, create and tidy the Delta table that warehouses publish to, with delta-rs (``torch-diode[delta]``).

Delta decides who wins when several machines write at once. Each commit is one new file in the table's log, and a second
file of the same number is refused. A commit carries a transaction number of its warehouse, so that nothing is published
twice; see ``diode_store.query.publish``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from datetime import timedelta
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from diode_store.delta.contract import COLUMNS, PARTITIONS, STATISTICS, VERSION, table_name, version_of
from diode_store.errors import CORRUPT, PublishedTableError, first_line
from diode_store.system.files import expanded
from diode_store.system.urls import TABLE_SCHEMES, redact
from diode_store.values.batching import ROWS_PER_GROUP
from diode_store.values.sql import quoted
from diode_store.values.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import CommitProperties, DeltaTable, WriterProperties

KEEP = timedelta(days=7)
"""Time for which replaced files stay, because a reader may still use them; Delta's own default."""
REWRITES = "torch-diode rewrites"
"""Name of the transactions that replace files. delta-rs 1.6 lets two commits replace one file, which doubles its rows;
a common transaction number makes it refuse the second."""
TARGET_BYTES = 256 * MIB
"""Size of the files that ``compact`` writes."""

_SCHEME = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]*)://")
# delta-rs and other readers disagree about the names of other characters.
_PLAIN = re.compile(r"[A-Za-z0-9._@:/-]+")
_ONE_SLASH = re.compile(f"({'|'.join(TABLE_SCHEMES)}):/(?!/)")
_OF_SYSTEM = re.compile(r'Os \{ code: \d+, kind: \w+, message: "([^"]+)" \}')
_NO_ANSWER = re.compile("dns error|tcp connect error|timed out", re.IGNORECASE)
_COLORS = re.compile("\x1b\\[[0-9;]*m")
_NO_ACCESS = re.compile(
    "credential|token request|account must|access.?denied|forbidden|unauthori[sz]ed|signature", re.IGNORECASE
)
_ATTEMPTS = 10
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
# An address that does not answer is told after a minute, and not after delta-rs's three.
_OPTIONS = {"connect_timeout": "10s", "retry_timeout": "60s"}


def table_url(text: str) -> str:
    """Return the address of a table as delta-rs takes it.

    Raises:
        PublishedTableError: the URL has another scheme, or the folder's name cannot be used.
    """
    if not text:
        raise PublishedTableError("the address of the table is empty; name a folder or a URL such as s3://bucket/table")
    if "?" in text:
        raise PublishedTableError(f"{redact(text)} names a part of a table; publish to the whole")
    if slip := _ONE_SLASH.match(text):
        raise PublishedTableError(f"{redact(text)}: write {slip[1]}:// with two slashes")
    scheme = _SCHEME.match(text)
    if scheme is None:
        folder = expanded(text, PublishedTableError).absolute()
        if folder.is_file():
            raise PublishedTableError(f"{folder} is a file; name a folder")
        return str(folder)
    if scheme[1].lower() not in TABLE_SCHEMES:
        known = ", ".join(f"{name}://" for name in TABLE_SCHEMES)
        raise PublishedTableError(f"{redact(text)}: {scheme[1]}:// is not supported; use {known}, or a folder")
    if not _PLAIN.fullmatch(text):
        raise PublishedTableError(f"{redact(text)}: name the table with letters, digits and - _ . only")
    return text.rstrip("/")


def find_table(url: str) -> DeltaTable | None:
    """Open a published table; None if there is no table.

    Args:
        url: from ``table_url``.

    Raises:
        PublishedTableError: the table cannot be read, or is not of this version.
    """
    deltalake = _deltalake()
    with errors_of_delta(url):
        if not deltalake.DeltaTable.is_deltatable(url, _options(url)):
            return None
        table: DeltaTable = deltalake.DeltaTable(url, storage_options=_options(url))
        _check(url, table)
    return table


def open_table(url: str) -> DeltaTable:
    """Open a published table.

    Args:
        url: from ``table_url``.

    Raises:
        PublishedTableError: as for ``find_table``, or there is no table.
    """
    table = find_table(url)
    if table is None:
        raise PublishedTableError(f"{redact(url)} holds no Delta table; `diode publish {redact(url)}` makes one")
    return table


def open_or_create(url: str) -> DeltaTable:
    """Open a published table; create it if there is none.

    Args:
        url: from ``table_url``.

    Raises:
        PublishedTableError: as for ``find_table``, or the table cannot be made.
    """
    table = find_table(url)
    if table is None:
        with errors_of_delta(url):
            # Another machine may make it at the same time.
            _deltalake().DeltaTable.create(
                url,
                schema=arrow_schema(),
                partition_by=list(PARTITIONS),
                mode="ignore",
                name=table_name(),
                description="Kernel timings; see torch-diode's page on published tables",
                configuration={"delta.dataSkippingStatsColumns": ",".join(STATISTICS)},
                storage_options=_options(url),
            )
    return table or open_table(url)


def arrow_schema() -> pa.Schema:
    """Return the columns of a published table as Arrow types."""
    types = {
        "string": pa.string(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in COLUMNS.items()])


def numbered(table: DeltaTable, *names: str) -> CommitProperties:
    """Return properties of a commit with the next transaction number of each name.

    Of two commits that read one version of the table and have one name in common, Delta refuses the second.
    """
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        app_transactions=[Transaction(name, (table.transaction_version(name) or 0) + 1) for name in names]
    )


def compact(table: DeltaTable, *, dry_run: bool) -> int:
    """Replace the files of each device and month where that halves their number; return how many were replaced.

    delta-rs has ``optimize.compact``, but its commits take no transaction number.

    Raises:
        PublishedTableError: the table cannot be written, or other writers replace files all the time.
    """
    with errors_of_delta(table.table_uri):
        files = pa.table(table.get_add_actions(flatten=True))
    places = files.group_by([f"partition.{name}" for name in PARTITIONS])
    replaced = 0
    for found in places.aggregate([("size_bytes", "count"), ("size_bytes", "sum")]).to_pylist():
        count = found["size_bytes_count"]
        if count > 2 * math.ceil(found["size_bytes_sum"] / TARGET_BYTES):
            if not dry_run:
                _rewrite(table, {name: found[f"partition.{name}"] for name in PARTITIONS})
            replaced += count
    if replaced and not dry_run:
        with errors_of_delta(table.table_uri):
            table.create_checkpoint()
            table.cleanup_metadata()
    return replaced


def _rewrite(table: DeltaTable, place: dict[str, str]) -> None:
    """Replace the files of a device and month; files that are added meanwhile stay as they are."""
    import pyarrow.dataset as ds
    from deltalake import write_deltalake
    from deltalake.exceptions import CommitFailedError

    for _ in range(_ATTEMPTS):
        with errors_of_delta(table.table_uri):
            table.update_incremental()
            condition = reduce(and_, (ds.field(name) == value for name, value in place.items()))
            # Read ahead, Arrow would hold several files in memory.
            rows = table.to_pyarrow_dataset().scanner(
                filter=condition,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,
                fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=False),
            )
            try:
                write_deltalake(
                    table,
                    rows.to_reader(),
                    mode="overwrite",
                    predicate=" AND ".join(f"{name} = {quoted(value)}" for name, value in place.items()),
                    partition_by=list(PARTITIONS),
                    target_file_size=TARGET_BYTES,
                    writer_properties=writer_properties(),
                    commit_properties=numbered(table, REWRITES),
                )
            except CommitFailedError:
                continue
            table.update_incremental()
            return
    raise PublishedTableError(f"{table.table_uri}: other writers replaced files meanwhile; compact again later")


def writer_properties() -> WriterProperties:
    """Return the compression and the size of row groups of the table's files."""
    from deltalake import WriterProperties

    return WriterProperties(compression="ZSTD", max_row_group_size=2 * ROWS_PER_GROUP)


def vacuum(table: DeltaTable, *, dry_run: bool) -> list[str]:
    """Delete files older than ``KEEP`` that the table no longer has; return their names.

    A reader of an older version and a writer that is not done have that long.
    """
    with errors_of_delta(table.table_uri):
        return list(table.vacuum(retention_hours=int(KEEP / timedelta(hours=1)), dry_run=dry_run, full=True))


@contextlib.contextmanager
def errors_of_delta(url: str) -> Iterator[None]:
    """Turn an error of delta-rs, or of DuckDB that reads through it, into ours.

    A commit that another writer overtook stays a ``CommitFailedError``.

    Raises:
        PublishedTableError: delta-rs failed.
    """
    import duckdb
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError, ValueError, duckdb.Error) as error:
        if CORRUPT in str(error):
            raise  # a block of the cache
        raise PublishedTableError(f"{redact(url)}: {_reason(url, error)}") from error


def _deltalake() -> Any:
    # delta-rs writes warnings of its libraries to stderr; what matters comes back as an error.
    os.environ.setdefault("RUST_LOG", "off")
    try:
        import deltalake
    except ModuleNotFoundError as error:
        raise PublishedTableError("published tables need delta-rs; run `pip install torch-diode[delta]`") from error
    return deltalake


def _options(url: str) -> dict[str, str]:
    return dict(_OPTIONS) if _SCHEME.match(url) else {}


def _check(url: str, table: DeltaTable) -> None:
    """Refuse a table of something else or of another version."""
    version = version_of(table.metadata().name)
    if version is None:
        raise PublishedTableError(f"{redact(url)} is a Delta table of something else; name another place")
    if version != VERSION:
        remedy = "upgrade torch-diode" if version > VERSION else "publish to another place"
        raise PublishedTableError(
            f"{redact(url)} has version {version} of the published columns and this torch-diode "
            f"uses {VERSION}; {remedy}"
        )
    found = {field.name: str(field.type.type) for field in table.schema().fields if hasattr(field.type, "type")}
    wrong = [name for name in COLUMNS | found if COLUMNS.get(name) != found.get(name)]
    if wrong:
        raise PublishedTableError(
            f"{redact(url)}: another program changed the column {wrong[0]}; restore the table, or name another place"
        )


def refuse_other_files(url: str) -> None:
    """Refuse to make a table in a folder that has other files.

    Raises:
        PublishedTableError: there are such files.
    """
    folder = Path(url.removeprefix("file://"))
    if _SCHEME.match(str(folder)):
        return
    # Another machine may have made the table since; a killed one leaves a folder for the log.
    if folder.is_dir() and any(each.name != "_delta_log" for each in folder.iterdir()) and find_table(url) is None:
        raise PublishedTableError(f"{folder} holds other files; name an empty or new folder")


def _reason(url: str, error: Exception) -> str:
    """Return one line of delta-rs's error, which may have several lines with the cause in the last ones."""
    text = _COLORS.sub("", str(error))
    lines = [line.strip().removeprefix("↳ ") for line in text.splitlines() if line.strip()]
    whole = ": ".join(lines) or first_line(error)
    if _NO_ACCESS.search(whole):
        scheme = (_SCHEME.match(url) or ["", "file"])[1].lower()
        names = _CREDENTIALS.get({"s3a": "s3", "abfs": "az", "abfss": "az"}.get(scheme, scheme))
        if names:
            return f"access was refused or credentials are missing; set {names} ({lines[-1][:200]})"
    if _NO_ANSWER.search(whole):
        return f"the object store does not answer; check the network and the endpoint ({lines[-1][:200]})"
    if "URL scheme is not allowed" in whole:
        return "the endpoint is http://; set AWS_ALLOW_HTTP=true to allow it"
    return _OF_SYSTEM.sub(r"\1", whole)[:500]
