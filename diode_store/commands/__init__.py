"""The warehouse's sub-commands of `diode`, one module each."""
