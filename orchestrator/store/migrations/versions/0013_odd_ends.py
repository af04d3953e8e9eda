"""A mark for accepted answers that ended for an unknown reason."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the mark. Existing answers keep NULL, because their reason was never checked."""
    op.add_column("requests", sa.Column("odd_end", sa.Boolean(), nullable=True))
