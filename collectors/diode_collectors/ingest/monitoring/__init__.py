"""How operators follow the daemon: logs, health, metrics, systemd."""
