"""`diode-train`, `diode evaluate` and `diode models`."""
