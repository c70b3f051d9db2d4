"""Inductor's objects as records, and the clock that times its kernels."""
