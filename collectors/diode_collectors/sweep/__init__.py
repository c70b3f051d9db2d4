"""Sweeps: problems through Inductor on every device of a host, timed by a benchmarker of the sweep's own."""
