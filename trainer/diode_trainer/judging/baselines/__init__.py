"""Baselines to beat: rankings without a network, judged on held-out problems like a model."""
