"""`diode-collect` and its sub-commands."""
