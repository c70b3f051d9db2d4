"""Start, talk to and end other processes."""
