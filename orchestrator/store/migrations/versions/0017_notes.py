"""Unread parts of a row's document."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the column. Existing rows keep NULL, because the unread parts of their documents are unknown."""
    op.add_column("requests", sa.Column("notes", sa.Text(), nullable=True))
