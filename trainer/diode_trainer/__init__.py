"""Train models on the warehouse's views, judge them, and store them with their cards."""
