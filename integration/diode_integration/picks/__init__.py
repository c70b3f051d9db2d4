"""Picks files: which kernels they name, and how compiles make them."""
