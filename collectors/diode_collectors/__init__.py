"""Where records come from and how they reach the warehouse."""
