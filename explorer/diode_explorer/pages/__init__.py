"""What each page shows: queries, and what their columns mean."""
