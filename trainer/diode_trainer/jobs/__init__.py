"""Jobs of `diode-train`: fit and judge a recipe, and write the model."""
