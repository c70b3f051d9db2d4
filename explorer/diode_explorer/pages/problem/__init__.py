"""All kernels of one matrix product."""
