"""the person who started a night by hand"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Existing nights keep null: it is unknown who started them."""
    op.add_column("nights", sa.Column("asked_by", sa.Text(), nullable=True))
