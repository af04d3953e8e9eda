"""Which schema the database has."""

HEAD = "0016"
"""The newest migration. Known here so that a current database is opened without importing Alembic."""
