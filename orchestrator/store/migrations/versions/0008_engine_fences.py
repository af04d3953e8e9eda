"""The daemon of a home that may write to a database that several machines share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add an empty table: existing homes never had a second daemon."""
    op.create_table(
        "engine_fences",
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("replica", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("home", name=op.f("pk_engine_fences")),
    )
