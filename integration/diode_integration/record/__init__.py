"""Records of the hook's work: counts, decisions, reports."""
