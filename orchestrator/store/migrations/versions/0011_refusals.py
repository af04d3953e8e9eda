"""Fields that models have refused, and rows that wait because a backend refuses all rows of their kind."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add both tables, empty: orch has learned nothing yet, and no row waits."""
    op.create_table(
        "refused_fields",
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("field", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("learned_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("backend", "model", "endpoint", "field", name=op.f("pk_refused_fields")),
    )
    op.create_table(
        "refusal_holds",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("task", sa.String(length=40), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("held_at", sa.BigInteger(), nullable=False),
        sa.Column("probe_at", sa.BigInteger(), nullable=False),
        sa.Column("times", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_refusal_holds_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "backend", "model", "task", name=op.f("pk_refusal_holds")),
    )
