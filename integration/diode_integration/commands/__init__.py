"""The hook's commands."""
