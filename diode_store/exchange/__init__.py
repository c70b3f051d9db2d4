"""Formats for importing and exporting measurements; one module a format.

None of them needs a database: a reader yields records and a line about each that was bad, a writer takes records.
"""
