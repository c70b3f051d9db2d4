"""Models and their evaluation on measured problems."""
