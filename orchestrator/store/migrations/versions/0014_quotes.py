"""Quotes of answers: where a document's text stands in its request, and where its quotes stand in the text."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """Add columns for quotes. Earlier rows keep NULL: their tasks asked for no quotes."""
    op.add_column("requests", sa.Column("unverifiable", sa.Boolean(), nullable=True))
    op.add_column("requests", sa.Column("text_at", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("quotes", sa.Text(), nullable=True))
