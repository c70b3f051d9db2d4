"""Report on the daemon to operators: logs, health, metrics, systemd."""
