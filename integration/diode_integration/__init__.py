"""From a model to a choice inside torch.compile."""
