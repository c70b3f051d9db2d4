"""Commands of the trainer: `diode-train`, and sub-commands of `diode`."""
