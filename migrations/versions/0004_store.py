"""indexes whose worst use is harmless, what Postgres is to believe of jobs, and failures that are known"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_IS_WAITING = "settled_at IS NULL AND shard_id IS NULL AND twin_of IS NULL"


def upgrade() -> None:
    """Indexes of waiting rows, shards and failures; since when rows fail, and what a person acknowledged."""
    # Rows of a time in which no outcome said when.
    op.execute("UPDATE requests SET settled_at = 0 WHERE settled_at IS NULL AND state <> 'pending'")
    op.drop_index("ix_requests_waiting", table_name="requests")
    op.drop_index("ix_requests_shard_id", table_name="requests")
    op.drop_index("ix_requests_canary", table_name="requests")
    for name, columns, condition in (
        ("canary", ["job_id", "canary"], "canary IS NOT NULL"),
        ("waiting", ["job_id", "endpoint", "model", "seq"], _IS_WAITING),
        ("shard_id", ["shard_id"], "shard_id IS NOT NULL"),
        ("failures", ["job_id", "error_code"], "error_code IS NOT NULL"),
    ):
        only = sa.text(condition)
        op.create_index(f"ix_requests_{name}", "requests", columns, sqlite_where=only, postgresql_where=only)
    op.add_column("requests", sa.Column("failed_since", sa.BigInteger(), nullable=True))
    op.add_column("shards", sa.Column("failing", sa.JSON(), nullable=True))
    op.create_table(
        "acknowledgements",
        sa.Column("series", sa.String(length=64), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("series", "custom_id", "code", name=op.f("pk_acknowledgements")),
    )
    if op.get_bind().dialect.name == "postgresql":
        # What Postgres learned of the jobs before says that the newest has no rows, and then every index looks as
        # good as the one that finds a row by its place. Without it a job is taken to be one of 200.
        for table, column in (
            ("requests", "job_id"),
            ("ledger", "job_id"),
            ("events", "job_id"),
            ("documents", "series"),
        ):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
