"""failures by name, several runs a day, runs that follow others, what was written where"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
