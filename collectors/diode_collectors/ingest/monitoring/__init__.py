"""What tells operators how the daemon does: logs, health, metrics, systemd."""
