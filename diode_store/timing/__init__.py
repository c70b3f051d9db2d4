"""Timing noise, rooflines, and times that cannot be true."""
