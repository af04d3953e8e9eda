"""what deadlines are planned by: when batches were seen, how far engines were, forecasts that were cut short"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Times of batches, the progress of engines, and whether a forecast was cut short."""
    for column in (
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=True),
        sa.Column("took_seconds", sa.Float(), nullable=True),
        sa.Column("hedged_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column("shards", column)
    op.add_column("forecasts", sa.Column("censored", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "progress",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("left", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_progress_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "backend", "at", name=op.f("pk_progress")),
    )
    op.create_index(op.f("ix_progress_backend_at"), "progress", ["backend", "at"], unique=False)
