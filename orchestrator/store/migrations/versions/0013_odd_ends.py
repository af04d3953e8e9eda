"""accepted answers that ended for a reason that nobody knows"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Of the answers so far nobody looked at that."""
    op.add_column("requests", sa.Column("odd_end", sa.Boolean(), nullable=True))
