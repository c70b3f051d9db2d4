"""Decisions on matrix products: models and what they know, rankings, policy. Knows nothing of Inductor."""
