"""From a device that no model knows to one that picks its kernels: plans a sweep, has it run, and trains."""
