"""Kinds of events in a job's life. Their text explains; no code depends on it."""

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
    CANARY = "canary"  # the rows that go first passed, or were left out
    QUALITY = "quality"  # its answers were compared with known ones
    STOPPED = "stopped"  # a budget or the canary cancelled it; the code is a `CancelCode`
    CANCEL = "cancel"  # the user asked for it
    SUPERSEDED = "superseded"  # its file was edited: a newer job takes over its work
    RETRY = "retry"
    RELEASED = "released"  # from quarantine
    ACKNOWLEDGED = "acknowledged"
    FINISHED = "finished"
    FAILED = "failed"
    OUTPUT = "output"  # its rows could not be written where they belong
    DELIVERED = "delivered"  # they were written, after the job's end
    CLEARED = "cleared"  # its files are removed
    WAITING = "waiting"  # why nothing moves
    FAULT = "fault"  # an error that should be impossible; the code says what and where
    BUDGET = "budget"  # a budget is past its warning mark; the code names budget and period
    ALERT = "alert"
    UNDELIVERED = "undelivered"  # no channel took a message
    # One shard
    ROUTED = "routed"  # with the code `PROBE`, to measure a backend long unused
    SUBMITTED = "submitted"
    PREFLIGHT = "preflight"  # the result of the row that is asked before a batch
    HELD = "held"
    RECOVERED = "recovered"
    DOUBLE = "double"  # another batch of the same shard was found
    RESCUED = "rerouted"  # its rows are sent elsewhere
    SPLIT = "split"  # it was given up before it was sent
    ENDED = "ended"
    COLLECTED = "collected"
    SWAPPED = "swapped"  # answers of its batch came back under other rows' keys
    LATE = "late"  # answers arrived after its end
    LEFT = "left"  # files that could not be deleted


PROBE = "probe"
"""The code for rows routed to measure a backend long unused."""


class Event(Struct, frozen=True):
    """An event of a job, with its reason as text. `shard_id` is the shard that it concerns.

    `kind` is an `EventKind`, or a kind from another version. `code` is a detail of it for programs; None if the kind
    says it all.
    """

    at: datetime
    kind: str
    reason: str
    shard_id: str | None = None
    code: str | None = None
