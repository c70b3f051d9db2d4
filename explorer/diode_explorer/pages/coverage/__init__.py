"""Which sizes are measured, on a map, and how fast they are."""
