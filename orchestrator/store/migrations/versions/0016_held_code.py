"""The reason why a shard waits, as a code."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Add the column. A waiting shard gets its code at its next step."""
    op.add_column("shards", sa.Column("held_code", sa.String(16), nullable=True))
