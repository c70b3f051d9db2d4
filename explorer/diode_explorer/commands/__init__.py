"""`diode serve`."""
