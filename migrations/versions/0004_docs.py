"""what a job's folders held that is not a document"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Counts of what a build ignored; of earlier jobs nothing is known."""
    op.add_column("jobs", sa.Column("ignored", sa.JSON(), nullable=True))
