"""Schedules, their nights and sent reports."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add schedules, nights and alerts, the reason why a row is asked, and marks of unchanged documents."""
    for column in (
        sa.Column("why", sa.String(length=24), nullable=True),
        sa.Column("content", sa.String(length=32), nullable=True),
        sa.Column("wording", sa.String(length=12), nullable=True),
        sa.Column("canary", sa.Boolean(), nullable=True),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.Column("again", sa.Integer(), server_default="0", nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=True),
        sa.Column("first_length", sa.Integer(), nullable=True),
        sa.Column("part", sa.Integer(), nullable=True),
        sa.Column("parts", sa.Integer(), nullable=True),
    ):
        op.add_column("requests", column)
    for column in (
        sa.Column("stamp", sa.Text(), nullable=True),
        sa.Column("content", sa.String(length=32), nullable=True),
        sa.Column("file", sa.Text(), nullable=True),
        sa.Column("place", sa.Integer(), nullable=True),
    ):
        op.add_column("documents", column)
    goes_first = sa.text("canary IS NOT NULL")
    op.create_index(
        "ix_requests_canary", "requests", ["job_id"], sqlite_where=goes_first, postgresql_where=goes_first
    )
    reduces = sa.text("parts IS NOT NULL AND part IS NULL")
    op.create_index(
        "ix_requests_reduce", "requests", ["job_id", "seq"], sqlite_where=reduces, postgresql_where=reduces
    )
    of_table = sa.text("file IS NOT NULL")
    op.create_index(
        "ix_documents_file",
        "documents",
        ["series", "file", "place"],
        sqlite_where=of_table,
        postgresql_where=of_table,
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("tz", sa.Text(), nullable=False),
        sa.Column("deadline", sa.Text(), nullable=True),
        sa.Column("budget", sa.BigInteger(), nullable=True),
        sa.Column("misfire", sa.String(length=8), nullable=False),
        sa.Column("grace_seconds", sa.BigInteger(), nullable=False),
        sa.Column("overlap", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("paused_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
        sa.UniqueConstraint("name", name=op.f("uq_schedules_name")),
    )
    op.create_table(
        "nights",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("schedule_id", sa.String(length=80), nullable=False),
        sa.Column("night", sa.Date(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name=op.f("fk_nights_schedule_id_schedules"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nights")),
        sa.UniqueConstraint("schedule_id", "night", name=op.f("uq_nights_schedule_id_night")),
    )
    op.create_index(op.f("ix_nights_job_id"), "nights", ["job_id"], unique=False)
    op.create_index(op.f("ix_nights_state"), "nights", ["state"], unique=False)
    op.create_table(
        "alerts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_alerts_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alerts")),
        sa.UniqueConstraint("key", name=op.f("uq_alerts_key")),
    )
    op.create_index(op.f("ix_alerts_job_id"), "alerts", ["job_id"], unique=False)
    op.create_table(
        "quality",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("hits", sa.Integer(), nullable=False),
        sa.Column("fields", sa.Integer(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("absent", sa.Integer(), nullable=False),
        sa.Column("withheld", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_quality_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_quality")),
    )
