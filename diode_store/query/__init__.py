"""Queries over the cache: DuckDB, the guard, the limited process."""
