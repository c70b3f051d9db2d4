"""Checks and conversions of single values."""
