"""What listens inside a compile and records what it measures."""
