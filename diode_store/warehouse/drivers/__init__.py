"""Ways of SQLite's and PostgreSQL's drivers: their values, errors, waits and fastest input."""
