"""Failures with their start, several runs a day, jobs after others, outputs, and inputs of plans."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_WARNING = re.compile(r"budget (?P<name>.+), (?P<period>night|month) until (?P<renews>\d{4}-\d\d-\d\d \d\d:\d\d)")
"""Beginning of a budget's warning in the events of older versions."""
_IS_WAITING = "settled_at IS NULL AND shard_id IS NULL AND twin_of IS NULL"


def upgrade() -> None:
    """Add columns for the daemon, failures, backends, the planner and Postgres."""
    _engine()
    _indexes()
    _failures()
    _backends()
    _plans()
    _codes()
    _words()
    _statistics()


def _engine() -> None:
    op.add_column("jobs", sa.Column("error_code", sa.String(length=32), nullable=True))
    op.add_column("jobs", sa.Column("ignored", sa.JSON(), nullable=True))
    op.add_column("schedules", sa.Column("after", sa.String(length=80), nullable=True))
    op.add_column("alerts", sa.Column("home", sa.String(length=32), nullable=True))
    op.add_column("nights", sa.Column("code", sa.String(length=32), nullable=True))
    op.add_column("nights", sa.Column("slot", sa.String(length=8), server_default="", nullable=False))
    with op.batch_alter_table("nights") as nights:
        nights.drop_constraint("uq_nights_schedule_id_night", type_="unique")
        nights.create_unique_constraint("uq_nights_schedule_id_night_slot", ["schedule_id", "night", "slot"])
    op.create_table(
        "outputs",
        sa.Column("home", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("series", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("mark", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("home", "key", name=op.f("pk_outputs")),
    )


def _backends() -> None:
    for column in (
        sa.Column("seen_at", sa.BigInteger(), nullable=True),
        sa.Column("sends", sa.Integer(), server_default="0", nullable=False),
        sa.Column("owed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cleaned_at", sa.BigInteger(), nullable=True),
    ):
        op.add_column("shards", column)
    # Shards that have ended are not cleaned up any further.
    op.execute(
        "UPDATE shards SET cleaned_at = COALESCE(collected_at, created_at) WHERE state IN ('collected', 'cancelled')"
    )
    unclean = sa.text("cleaned_at IS NULL")
    op.create_index("ix_shards_unclean", "shards", ["job_id"], sqlite_where=unclean, postgresql_where=unclean)


def _plans() -> None:
    for column in (
        sa.Column("first_at", sa.BigInteger(), nullable=True),
        sa.Column("took_seconds", sa.Float(), nullable=True),
    ):
        op.add_column("shards", column)
    op.add_column("forecasts", sa.Column("censored", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.create_table(
        "progress",
        sa.Column("job_id", sa.String(length=80), nullable=False),
        sa.Column("backend", sa.String(length=40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("left", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_progress_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "backend", "at", name=op.f("pk_progress")),
    )
    op.create_index(op.f("ix_progress_backend_at"), "progress", ["backend", "at"], unique=False)


def _words() -> None:
    op.execute("ALTER TABLE shards RENAME COLUMN pulled_at TO rerouted_at")
    op.execute("ALTER TABLE shards RENAME COLUMN pulled_for TO rerouted_for")
    op.execute("UPDATE events SET kind = 'rerouted' WHERE kind = 'rescued'")
    op.execute("UPDATE ledger SET kind = 'rerouted' WHERE kind = 'taken_back'")
    op.execute("UPDATE ledger SET kind = 'reasked' WHERE kind = 'asked_again'")
    op.execute("UPDATE ledger SET kind = 'escalated' WHERE kind = 'climbed'")


def _indexes() -> None:
    # Rows from before outcomes had a time.
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


def _failures() -> None:
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


def _codes() -> None:
    op.add_column("jobs", sa.Column("cancel_code", sa.String(length=16), nullable=True))
    op.add_column("shards", sa.Column("refusal_code", sa.Text(), nullable=True))
    op.add_column("events", sa.Column("code", sa.Text(), nullable=True))
    op.add_column("requests", sa.Column("first_model", sa.Text(), nullable=True))
    op.execute(
        "UPDATE jobs SET cancel_code = CASE WHEN cancel_reason LIKE 'budget%' THEN 'budget'"
        " WHEN cancel_reason LIKE 'canary:%' THEN 'canary' ELSE 'user' END WHERE cancel_requested_at IS NOT NULL"
    )
    op.execute(
        "UPDATE events SET code = CASE WHEN reason LIKE 'budget%' THEN 'budget' ELSE 'canary' END"
        " WHERE kind = 'stopped'"
    )
    # A model's own name may end like a rung, but only job files have aliases.
    op.execute(
        "UPDATE requests SET first_model = substr(model, 1, length(model) - 2) WHERE model LIKE '%@_'"
        " AND job_id IN (SELECT id FROM jobs WHERE kind = 'documents')"
    )
    _refusal_codes()
    _warning_codes()


def _refusal_codes() -> None:
    shards = sa.table("shards", sa.column("id"), sa.column("refusal"), sa.column("refusal_code"))
    bind = op.get_bind()
    for shard_id, refusal in bind.execute(
        sa.select(shards.c.id, shards.c.refusal).where(shards.c.refusal.is_not(None))
    ).all():
        code, found, message = refusal.partition(": ")
        values = {"refusal_code": code, "refusal": message if found else ""}
        bind.execute(sa.update(shards).where(shards.c.id == shard_id).values(**values))


def _warning_codes() -> None:
    events = sa.table("events", sa.column("id"), sa.column("kind"), sa.column("reason"), sa.column("code"))
    alerts = sa.table("alerts", sa.column("id"), sa.column("kind"), sa.column("key"))
    bind = op.get_bind()
    told = sa.select(events.c.id, events.c.reason).where(events.c.kind == "budget")
    for event_id, reason in bind.execute(told).all():
        if found := _WARNING.match(reason):
            bind.execute(sa.update(events).where(events.c.id == event_id).values(code=_code_of(found)))
    for alert_id, key in bind.execute(sa.select(alerts.c.id, alerts.c.key).where(alerts.c.kind == "budget")).all():
        if found := _WARNING.search(key):
            new = key[: found.start()] + _code_of(found) + key[found.end() :]
            bind.execute(sa.update(alerts).where(alerts.c.id == alert_id).values(key=new))


def _code_of(warning: re.Match[str]) -> str:
    return f"{warning['name']}/{warning['period']}/{warning['renews']}"


def _statistics() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # Statistics of earlier jobs say that the newest job has no rows. Every index then looks as good as the index
        # by `seq`. Without statistics, Postgres assumes 200 jobs of equal size.
        for table, column in (
            ("requests", "job_id"),
            ("ledger", "job_id"),
            ("events", "job_id"),
            ("documents", "series"),
        ):
            op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STATISTICS 0")
