"""Formats in which measurements come from and go to other places; one module a format.

None of them needs a database: a reader yields records and a line about each that was bad, a writer takes records.
"""
