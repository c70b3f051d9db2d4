"""Fitting a network: the recipe, the losses, the history and the checkpoints of a fit."""
