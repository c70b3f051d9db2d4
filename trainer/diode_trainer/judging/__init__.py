"""How well a model ranks: regret, its parts, calibration, and the rankings that it has to beat."""
