"""Measured rates of our own engines (`orch bench --apply`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add an engine's tokens per second, start, memory and best concurrency, by settings and hardware."""
    op.create_table(
        "engine_rates",
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("engine_version", sa.String(length=40), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("prefill", sa.Float(), nullable=False),
        sa.Column("decode", sa.Float(), nullable=True),
        sa.Column("input_tokens", sa.Float(), nullable=False),
        sa.Column("output_tokens", sa.Float(), nullable=False),
        sa.Column("best_limit", sa.Integer(), nullable=False),
        sa.Column("start_seconds", sa.Float(), nullable=True),
        sa.Column("vram_bytes", sa.BigInteger(), nullable=True),
        sa.Column("measured_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "home", "backend", "model", "options", "engine_version", "gpu", name=op.f("pk_engine_rates")
        ),
    )
