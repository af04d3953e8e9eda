"""ledger lines with the list price of their day"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Existing lines have no list price: a report uses the prices in orch.toml when it is made."""
    op.add_column("ledger", sa.Column("listed", sa.BigInteger(), nullable=True))
