"""The schema version of the database."""

HEAD = "0019"
"""The newest migration. Stated here so that opening a current database does not import Alembic."""
