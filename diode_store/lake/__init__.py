"""The lake: Parquet files beside the warehouse, which DuckDB reads."""
