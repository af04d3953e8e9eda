"""The schema version of the database."""

HEAD = "0017"
"""The newest migration. Stated here so that a current database is opened without importing Alembic."""
