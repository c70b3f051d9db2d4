"""Listens inside a compile and records what Inductor times."""
