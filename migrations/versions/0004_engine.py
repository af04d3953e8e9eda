"""failures by name, several runs a day, jobs that follow others, outputs, and what plans are made from"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """What runs and their failures are told by, and what deadlines are planned from."""
    _runs()
    _plans()


def _runs() -> None:
    """Codes of failed jobs and nights, slots of nights, schedules after others, outputs, alerts without a job."""
    op.add_column("jobs", sa.Column("error_code", sa.String(length=32), nullable=True))
    op.add_column("schedules", sa.Column("after", sa.String(length=80), nullable=True))
    op.add_column("alerts", sa.Column("home", sa.String(length=32), nullable=True))
    op.add_column("nights", sa.Column("code", sa.String(length=32), nullable=True))
    op.add_column("nights", sa.Column("slot", sa.String(length=8), server_default="", nullable=False))
    with op.batch_alter_table("nights") as nights:
        nights.drop_constraint("uq_nights_schedule_id_night", type_="unique")
        nights.create_unique_constraint("uq_nights_schedule_id_night_slot", ["schedule_id", "night", "slot"])
    op.create_table(
        "outputs",
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("series", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("mark", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("home", "key", name=op.f("pk_outputs")),
    )


def _plans() -> None:
    """Times of batches, the progress of engines, and whether a forecast was cut short."""
    for column in (
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.Column("first_at", sa.BigInteger(), nullable=True),
        sa.Column("took_seconds", sa.Float(), nullable=True),
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
