"""The spool: durable segments between a collector and the daemon."""
