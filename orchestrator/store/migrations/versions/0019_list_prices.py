"""The list price of the day for each ledger line."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add the column. For existing lines, a report uses the prices in orch.toml when it is made."""
    op.add_column("ledger", sa.Column("listed", sa.BigInteger(), nullable=True))
