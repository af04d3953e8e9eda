"""Which schema the database has."""

HEAD = "0014"
"""The newest migration. Known here so that a current database is opened without importing Alembic."""
