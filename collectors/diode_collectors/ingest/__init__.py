"""Move records from spools into the warehouse: one pass, and the daemon around it."""
