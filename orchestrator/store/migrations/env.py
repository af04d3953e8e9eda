"""Alembic's entry point: runs on the connection that orch passes, or on ORCH_DATABASE_URL from the command line."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import Connection, create_engine

from orchestrator.store import learned_tables, night_tables  # noqa: F401  (their tables are of the metadata)
from orchestrator.store.tables import metadata


def run(connection: Connection) -> None:
    # SQLite rolls back schema changes too, so processes that find an old database at the same time take turns.
    context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(os.environ["ORCH_DATABASE_URL"]).connect() as own:
        run(own)
