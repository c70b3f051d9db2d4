"""From the views of the warehouse to a model and its card."""
