"""The Delta table that a fleet of warehouses publishes to."""
