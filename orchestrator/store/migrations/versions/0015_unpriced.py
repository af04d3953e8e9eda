"""A mark for ledger lines whose cost does not cover everything that the answer used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Add the mark. Existing lines keep NULL, because they were never checked for use without a price."""
    op.add_column("ledger", sa.Column("unpriced", sa.Boolean(), nullable=True))
