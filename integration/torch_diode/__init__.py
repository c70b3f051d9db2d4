"""Importing this package registers the shipped models with torch.compile."""
