"""who asked for a night that a person asked for"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Nobody is known to have asked for the nights that are there."""
    op.add_column("nights", sa.Column("asked_by", sa.Text(), nullable=True))
