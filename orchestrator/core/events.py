"""Kinds of events in a job's life. An event's text is for people; no code depends on it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class EventKind(StrEnum):
    """Kinds of events of a job or of its shards."""

    # The job
    ASKED = "asked"  # somebody started its night by hand
    BUILT = "built"  # its documents became requests
    REVISED = "revised"  # it got another deadline or budget
    CANARY = "canary"  # the canary rows, which are sent first, passed or were skipped
    QUALITY = "quality"  # its answers were compared with known answers
    STOPPED = "stopped"  # a budget or the canary cancelled it; the code is a `CancelCode`
    CANCEL = "cancel"  # the user asked for it
    SUPERSEDED = "superseded"  # its file was edited: a newer job takes over its work
    RETRY = "retry"
    RELEASED = "released"  # from quarantine
    ACKNOWLEDGED = "acknowledged"
    FINISHED = "finished"
    FAILED = "failed"
    OUTPUT = "output"  # its rows could not be written where its job file wants them
    DELIVERED = "delivered"  # its rows were written, after the job's end
    CLEARED = "cleared"  # its files are removed
    WAITING = "waiting"  # says why the job makes no progress
    FAULT = "fault"  # an error that should be impossible; the code says what and where
    BUDGET = "budget"  # spending has passed a budget's warning mark; the code names budget and period
    ALERT = "alert"
    UNDELIVERED = "undelivered"  # no channel accepted a message
    # One shard
    ROUTED = "routed"  # the code `PROBE` marks rows that measure a long unused backend
    SUBMITTED = "submitted"
    PREFLIGHT = "preflight"  # the result of the single row that is tried before a batch
    HELD = "held"
    RECOVERED = "recovered"
    DOUBLE = "double"  # another batch of the same shard was found
    RESCUED = "rerouted"  # its rows are sent elsewhere
    SPLIT = "split"  # the shard was given up before it was sent
    ENDED = "ended"
    COLLECTED = "collected"
    SWAPPED = "swapped"  # answers of its batch came back under other rows' keys
    LATE = "late"  # answers arrived after its end
    LEFT = "left"  # files that could not be deleted


PROBE = "probe"
"""Event code for rows that are routed to a backend only to measure it after long disuse."""


class Event(Struct, frozen=True):
    """An event of a job, with its reason as text. `shard_id` is the affected shard.

    `kind` is an `EventKind`, or a kind that another version of orch wrote. `code` is a detail for programs; None if
    the kind is enough.
    """

    at: datetime
    kind: str
    reason: str
    shard_id: str | None = None
    code: str | None = None
