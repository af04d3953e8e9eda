"""Rows that are asked before a batch, and the sets of fields that models have answered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column and the table. Every existing shard is a batch."""
    op.add_column("shards", sa.Column("preflight", sa.Text(), nullable=True))
    op.create_table(
        "proven_requests",
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("backend", "endpoint", "model", "fields", name=op.f("pk_proven_requests")),
    )
