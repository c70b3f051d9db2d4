"""Models, and how they do on what was measured."""
