"""The page of the hook's decisions in deployed compiles."""
