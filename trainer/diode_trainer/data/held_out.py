"""What the folds of an evaluation hold out together: a word that commands need before anything heavy is imported."""

from __future__ import annotations

from enum import StrEnum


class Split(StrEnum):
    """What is held out together."""

    PROBLEM = "problem"
    FAMILY = "family"
