"""ledger lines with the list price of their day"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """The lines so far have none: they are listed by the prices of orch.toml as it is when a report is made."""
    op.add_column("ledger", sa.Column("listed", sa.BigInteger(), nullable=True))
