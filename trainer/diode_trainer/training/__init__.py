"""One fit of a network: recipe, losses, history and checkpoints."""
