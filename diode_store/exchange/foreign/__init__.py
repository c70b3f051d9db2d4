"""Formats that others define: Inductor's, T4, and those of upstream torch-diode."""
