"""failures by name, several runs a day, runs that follow others, what was written where, what backends still owe"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Codes of failed jobs and nights, slots of nights, schedules after others, outputs, alerts without a job; when a
    batch was last answered for, how often it was asked for, and what remains to be done when it is over.
    """
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
