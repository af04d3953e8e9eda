"""Hosted batches: accounts, intents, learned limits and tiers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_IS_WAITING = "state = 'pending' AND shard_id IS NULL AND twin_of IS NULL"


def upgrade() -> None:
    """Add hosted batches to shards, rows and the ledger; add limits learned from refusals, and forecasts."""
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
    op.create_table(
        "forecasts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("shard_id", sa.String(length=90), server_default="", nullable=False),
        sa.Column("task", sa.String(length=40), server_default="", nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("p50", sa.Float(), nullable=False),
        sa.Column("p95", sa.Float(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("actual", sa.Float(), nullable=True),
        sa.Column("known_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_forecasts_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_forecasts")),
        sa.UniqueConstraint(
            "job_id", "kind", "shard_id", "task", name=op.f("uq_forecasts_job_id_kind_shard_id_task")
        ),
    )
    op.create_index(op.f("ix_forecasts_made_at"), "forecasts", ["made_at"], unique=False)
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
        sa.Column("trimmed_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_key", sa.String(length=32), nullable=True),
        sa.Column("twin_of", sa.Integer(), nullable=True),
        sa.Column("avoid", sa.Text(), nullable=True),
        sa.Column("sent_model", sa.Text(), nullable=True),
        sa.Column("reasoning_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=True),
    ):
        op.add_column("requests", column)
    op.drop_index("ix_requests_waiting", table_name="requests")
    for name, columns, condition in (
        ("waiting", ["job_id", "endpoint", "model", "seq"], _IS_WAITING),
        ("cache", ["cache_key"], "cache_key IS NOT NULL AND carried_from IS NULL AND twin_of IS NULL"),
        ("twins", ["job_id", "twin_of"], "twin_of IS NOT NULL"),
    ):
        only = sa.text(condition)
        op.create_index(f"ix_requests_{name}", "requests", columns, sqlite_where=only, postgresql_where=only)
    for column in (
        sa.Column("reasoning_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cache_write_tokens", sa.Integer(), server_default="0", nullable=False),
        sa.Column("tier", sa.String(length=16), nullable=True),
    ):
        op.add_column("ledger", column)
