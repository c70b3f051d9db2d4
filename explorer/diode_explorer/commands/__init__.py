"""`diode serve` and `diode report`."""
