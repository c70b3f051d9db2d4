"""Questions to the lake: DuckDB, the guard, the views."""
