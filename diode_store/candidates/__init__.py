"""Kernel configs as Inductor names, proposes and compiles them."""
