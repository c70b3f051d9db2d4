"""Which matrix products a sweep measures: typed, drawn, or taken from models and files. Needs no torch."""
