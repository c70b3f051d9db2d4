"""Listen inside a compile and record what Inductor times."""
