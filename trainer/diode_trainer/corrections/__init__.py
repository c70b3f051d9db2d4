"""Corrections of a model's predictions for problems that were measured."""
