"""Alembic's entry point to migrate a warehouse.

``diode_store.warehouse.migrate`` passes everything in by ``config.attributes``: an open connection whose transaction it
owns, the tables of ``diode_store.warehouse.schema``, and the name of the version table.
"""

from __future__ import annotations

from alembic import context

attributes = context.config.attributes
if "connection" not in attributes:
    raise SystemExit("error: migrations run through `diode db upgrade`, and are written by `diode db revision`")

connection = attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=attributes["target_metadata"],
    version_table=attributes["version_table"],
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
