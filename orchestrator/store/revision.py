"""The schema version of the database."""

HEAD = "0019"
"""The newest migration. Stated here so that a current database is opened without importing Alembic."""
