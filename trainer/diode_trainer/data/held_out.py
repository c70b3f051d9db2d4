"""Units that the folds of an evaluation hold out; commands need the names before heavy imports."""

from __future__ import annotations

from enum import StrEnum


class Split(StrEnum):
    """Unit that a fold holds out."""

    PROBLEM = "problem"
    FAMILY = "family"
