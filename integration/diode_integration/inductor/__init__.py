"""All code that touches the private parts of ``torch._inductor`` and ``torch._dynamo``."""
