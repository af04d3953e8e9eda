"""what was sent of a document"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rows say which pages went as pictures."""
    op.add_column("requests", sa.Column("sent_as", sa.Text(), nullable=True))
