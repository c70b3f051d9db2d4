"""The hook: from a model to a choice inside ``torch.compile``."""
