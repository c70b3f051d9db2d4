"""The explorer: the warehouse in a browser, read-only and offline."""
