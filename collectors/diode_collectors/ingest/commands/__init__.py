"""`diode-ingest` and its sub-commands."""
