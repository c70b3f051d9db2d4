"""Import and export of measurements, with one module for each format.

No format needs a database. A reader yields records and a line for each bad entry; a writer takes records.
"""
