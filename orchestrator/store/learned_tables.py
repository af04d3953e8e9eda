"""Tables of facts learned from refusals: limits, refused fields, and rows held because of a refusal."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, String, Table, Text

from orchestrator.store.columns import Instant, Words
from orchestrator.store.tables import metadata

# Limits learned from a backend's refusals about a model.
limits = Table(
    "limits",
    metadata,
    Column("backend", String(40), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("enqueued_tokens", BigInteger),
    Column("max_rows", Integer),
    Column("learned_at", Instant),
    Column("hold_until", Instant),
    Column("strikes", Integer, nullable=False, server_default="0"),
    Column("reason", Words, nullable=False),
)

# Fields of requests that a model has refused. `model` is the backend's name for it, `endpoint` the path of the task.
refused_fields = Table(
    "refused_fields",
    metadata,
    Column("backend", String(40), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("endpoint", String(64), primary_key=True),
    Column("field", Text, primary_key=True),
    Column("code", Words, nullable=False),
    Column("message", Words, nullable=False),
    Column("learned_at", Instant, nullable=False),
)

# Groups of rows that wait because a backend refused all of them. `model` is the alias in the rows.
refusal_holds = Table(
    "refusal_holds",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("backend", String(40), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("task", String(40), primary_key=True),
    Column("code", Words, nullable=False),
    Column("message", Words, nullable=False),
    Column("held_at", Instant, nullable=False),
    Column("probe_at", Instant, nullable=False),
    Column("times", Integer, nullable=False),
)


# Field sets that a model has answered. Requests with such a set need no preflight.
proven_requests = Table(
    "proven_requests",
    metadata,
    Column("backend", String(40), primary_key=True),
    Column("endpoint", String(64), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("fields", Text, primary_key=True),
    Column("at", Instant, nullable=False),
)
