"""Definitions of the views and of the cache's summaries: SQL files, and the macros that they use."""
