"""Further usage of an answer, and a mark for repaired JSON."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

_COUNTS = (
    "cache_write_1h_tokens", "input_audio_tokens", "output_audio_tokens", "input_image_tokens", "output_image_tokens",
    "web_searches",
)  # fmt: skip


def upgrade() -> None:
    """Add the columns. Earlier answers get counts of 0, which their prices did not include anyway."""
    for table in ("requests", "ledger"):
        for name in _COUNTS:
            op.add_column(table, sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.add_column("requests", sa.Column("repaired", sa.Boolean(), nullable=True))
