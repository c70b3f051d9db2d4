"""The warehouse of kernel timings: vocabulary, wire format, schema, storage and analytics."""
