"""accepted answers that ended for an unknown reason"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Existing answers were never checked for that."""
    op.add_column("requests", sa.Column("odd_end", sa.Boolean(), nullable=True))
