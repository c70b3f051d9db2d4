"""An evaluation report: its contents, its pictures and its files."""
