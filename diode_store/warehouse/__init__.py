"""The system of record: schema, migrations, and how rows get in and out."""
