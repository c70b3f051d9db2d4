"""Quality of rankings: regret and its parts, calibration, and the baselines to beat."""
