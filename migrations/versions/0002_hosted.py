"""hosted batches: accounts, intents, learned limits, tiers"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What a shard, a row and the ledger know of hosted batches; what refusals have taught."""
    op.create_table(
        "limits",
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("enqueued_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_rows", sa.Integer(), nullable=True),
        sa.Column("learned_at", sa.BigInteger(), nullable=True),
        sa.Column("hold_until", sa.BigInteger(), nullable=True),
        sa.Column("strikes", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("backend", "model", name=op.f("pk_limits")),
    )
    # Added one by one, not by a copy of the table: a home may hold millions of rows.
    for column in (
        sa.Column("tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("max_output", sa.BigInteger(), nullable=True),
        sa.Column("intended_at", sa.BigInteger(), nullable=True),
        sa.Column("account", sa.Text(), nullable=True),
        sa.Column("status_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("pulled_at", sa.BigInteger(), nullable=True),
        sa.Column("pulled_for", sa.Text(), nullable=True),
        sa.Column("refusal", sa.Text(), nullable=True),
    ):
        op.add_column("shards", column)
    op.execute("ALTER TABLE shards RENAME COLUMN error TO held")
    op.create_index(op.f("ix_shards_backend_state"), "shards", ["backend", "state"], unique=False)
    for column in (
        sa.Column("inputs", sa.Integer(), server_default="1", nullable=False),
        sa.Column("max_output", sa.Integer(), nullable=True),
        sa.Column("avoid", sa.String(length=40), nullable=True),
        sa.Column("reasoning_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=True),
    ):
        op.add_column("requests", column)
    for column in (
        sa.Column("reasoning_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=True),
    ):
        op.add_column("ledger", column)
