"""The cache: DuckDB files on this machine with the content of a warehouse, which queries read."""
