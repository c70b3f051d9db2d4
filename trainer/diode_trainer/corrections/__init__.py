"""What was measured of a problem corrects what a model predicts for it."""
