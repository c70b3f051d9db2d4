"""What the hook decided in deployed compiles."""
