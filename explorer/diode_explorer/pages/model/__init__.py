"""The page that evaluates a model, alone or beside another."""
