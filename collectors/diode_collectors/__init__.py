"""Sources of records, and their way into the warehouse."""
