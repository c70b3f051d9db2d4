"""Records as bytes: the codec, and the layout of a segment."""
