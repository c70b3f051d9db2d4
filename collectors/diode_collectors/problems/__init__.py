"""Matrix products for a sweep to measure: typed, drawn, or taken from models and files. Needs no torch."""
