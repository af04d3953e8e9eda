"""ledger lines whose cost does not cover all that their answer used"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    """Existing lines were never checked for use without a price."""
    op.add_column("ledger", sa.Column("unpriced", sa.Boolean(), nullable=True))
