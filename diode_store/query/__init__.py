"""Queries over the lake: DuckDB, the guard, the views."""
