"""Hours that engines held GPUs, pages sent as pictures, and avoided backends as a JSON array."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the hours that our own engines held GPUs, and the pages of a row's document sent as pictures.

    Convert `requests.avoid` from comma-separated names to JSON. No name has a comma or a quotation mark.
    """
    op.create_table(
        "engine_holds",
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("engine", sa.String(length=160), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=80), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("warm_at", sa.BigInteger(), nullable=True),
        sa.Column("is_over", sa.Boolean(), nullable=False),
        sa.Column("cost_per_hour", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("home", "backend", "engine", "began_at", name=op.f("pk_engine_holds")),
    )
    op.execute("""UPDATE requests SET avoid = '["' || replace(avoid, ',', '","') || '"]' WHERE avoid IS NOT NULL""")
    op.add_column("requests", sa.Column("sent_as", sa.Text(), nullable=True))
