"""Factors between units of time and of memory.

The warehouse holds microseconds and bytes; Inductor gives milliseconds.
"""

NS_PER_US = 1e3
US_PER_MS = 1e3
US_PER_S = 1e6
MS_PER_S = 1e3

KIB = 2**10
MIB = 2**20
GIB = 2**30
