"""what a backend still owes a batch, and what is left there of one"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """When a batch was last answered for, how often it was asked for, and what remains to be done when it is over."""
    for column in (
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.Column("sends", sa.Integer(), server_default="0", nullable=False),
        sa.Column("owed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cleaned_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column("shards", column)
    # What is over was cleaned up as far as it ever will be.
    op.execute(
        "UPDATE shards SET cleaned_at = COALESCE(collected_at, created_at) WHERE state IN ('collected', 'cancelled')"
    )
    unclean = sa.text("cleaned_at IS NULL")
    op.create_index("ix_shards_unclean", "shards", ["job_id"], sqlite_where=unclean, postgresql_where=unclean)
