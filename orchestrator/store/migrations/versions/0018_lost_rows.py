"""rows that were paid for and whose answers are lost"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Rename `lost` lines to `repaid`: until now, only batches with consent to pay again were booked."""
    op.execute("UPDATE ledger SET kind = 'repaid' WHERE kind = 'lost'")
    lost = sa.text("kind = 'lost'")
    op.create_index("ix_ledger_lost", "ledger", ["job_id"], sqlite_where=lost, postgresql_where=lost)
