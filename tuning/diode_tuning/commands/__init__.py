"""Commands of tuning and of the models that it makes."""
