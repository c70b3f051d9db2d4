"""How good a model is, alone or beside another."""
