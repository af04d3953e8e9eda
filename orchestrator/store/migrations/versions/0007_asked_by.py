"""The person who started a night by hand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column. Existing nights keep NULL, because it is unknown who started them."""
    op.add_column("nights", sa.Column("asked_by", sa.Text(), nullable=True))
