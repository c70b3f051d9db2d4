"""Files, folders, addresses, settings and limits of this machine."""
