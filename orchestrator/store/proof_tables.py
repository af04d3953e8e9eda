"""The table of requests that models have answered."""

from __future__ import annotations

from sqlalchemy import Column, String, Table, Text

from orchestrator.store.columns import Instant
from orchestrator.store.tables import metadata

# Sets of fields that a model has answered: they need no preflight.
proven_requests = Table(
    "proven_requests",
    metadata,
    Column("backend", String(40), primary_key=True),
    Column("endpoint", String(64), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("fields", Text, primary_key=True),
    Column("at", Instant, nullable=False),
)
