"""Known devices and their figures."""
