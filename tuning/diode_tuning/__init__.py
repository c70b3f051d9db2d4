"""Tuning for a device that no model knows: plan a sweep, run it, and train a model that picks its kernels."""
