"""Tables of unattended work: schedules, nights, messages, known failures, outputs and quality."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from orchestrator.store.columns import Instant, Money, Serial, Words
from orchestrator.store.tables import metadata

schedules = Table(
    "schedules",
    metadata,
    Column("id", String(80), primary_key=True),
    Column("name", String(80), nullable=False, unique=True),
    Column("home", String(32), nullable=False),
    Column("config", Text, nullable=False),
    Column("file", Text, nullable=False),
    Column("cron", Text, nullable=False),
    Column("tz", Text, nullable=False),
    Column("deadline", Text),
    Column("budget", Money),
    Column("misfire", String(8), nullable=False),
    Column("grace_seconds", BigInteger, nullable=False),
    Column("overlap", String(8), nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("since", Instant, nullable=False),
    Column("paused_at", Instant),
    # The schedule that this one follows, instead of a cron expression.
    Column("after", String(80)),
)


# The process that inserts a night owns it, because the unique key lets each night run only once. A night's job may be
# removed before the night. `slot` is the time of day if a date has several runs, otherwise "".
nights = Table(
    "nights",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("schedule_id", ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
    Column("night", Date, nullable=False),
    Column("slot", String(8), nullable=False, server_default=""),
    Column("due_at", Instant, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Words, nullable=False),
    Column("code", String(32)),
    Column("job_id", String(80), index=True),
    Column("created_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("asked_by", Text),
    UniqueConstraint("schedule_id", "night", "slot"),
    Index(None, "state"),
)


# Comparison of a job's answers with known answers (docs/how-to/checked-answers.md). `withheld` is the reason why its
# output is not delivered, or NULL.
quality = Table(
    "quality",
    metadata,
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("hits", Integer, nullable=False),
    Column("fields", Integer, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("absent", Integer, nullable=False),
    Column("withheld", Words),
    Column("at", Instant, nullable=False),
)


# Failures that a person has acknowledged, each by its start: a failure that returns later is new.
acknowledgements = Table(
    "acknowledgements",
    metadata,
    Column("series", String(64), primary_key=True),
    Column("custom_id", Text, primary_key=True),
    Column("code", Text, primary_key=True),
    Column("since", Instant, nullable=False),
    Column("at", Instant, nullable=False),
    Column("note", Text),
)


# Files and objects outside the home as orch last wrote them; `mark` identifies their content. `key` is a digest of
# the place, which may be too long for an index.
outputs = Table(
    "outputs",
    metadata,
    Column("home", String(32), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("place", Words, nullable=False),
    Column("series", String(64), nullable=False),
    Column("job_id", String(80), nullable=False),
    Column("mark", Text),
    Column("at", Instant, nullable=False),
)


# Messages, each sent once by its `key`. A message without a job has a home instead.
alerts = Table(
    "alerts",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    Column("at", Instant, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), index=True),
    Column("home", String(32)),
    Column("message", Words, nullable=False),
    Column("action", Words, nullable=False),
    Column("sent_at", Instant),
)
