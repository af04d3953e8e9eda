"""A mark for accepted answers that were cut off at max_tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the mark. Answers accepted earlier keep NULL and are not counted, because their lines may be gone."""
    op.add_column("requests", sa.Column("cut", sa.Boolean(), nullable=True))
    is_known = sa.text("cut IS NOT NULL")
    op.create_index(
        op.f("ix_requests_cut"), "requests", ["job_id", "cut"], sqlite_where=is_known, postgresql_where=is_known
    )
