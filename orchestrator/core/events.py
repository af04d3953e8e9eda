"""What happens to a job, by kind; the words of an event explain, and nothing depends on them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Protocol


class EventKind(StrEnum):
    """What happened to a job or to one of its shards."""

    # The job
    ASKED = "asked"  # somebody asked for its night, whose time it was not
    BUILT = "built"  # its documents became requests
    REVISED = "revised"  # it got another deadline or budget
    CANARY = "canary"  # the rows that go first passed, or were left out
    QUALITY = "quality"  # its answers were held against known ones
    STOPPED = "stopped"  # a budget or the canary cancelled it; the code is a `CancelCode`
    CANCEL = "cancel"  # the user asked for it
    SUPERSEDED = "superseded"  # its file was edited: a newer job takes over what is under way
    RETRY = "retry"
    RELEASED = "released"  # from quarantine
    ACKNOWLEDGED = "acknowledged"
    FINISHED = "finished"
    FAILED = "failed"
    OUTPUT = "output"  # its rows could not be put where they belong
    DELIVERED = "delivered"  # they are there now, later than the job's end
    CLEARED = "cleared"  # its files are removed
    WAITING = "waiting"  # why nothing moves
    FAULT = "fault"  # something went wrong that should not be able to; the code says what and where
    BUDGET = "budget"  # a budget is past its warning mark; the code names budget and period
    ALERT = "alert"
    UNDELIVERED = "undelivered"  # a message was not taken
    # One shard
    ROUTED = "routed"  # with the code `PROBE`, to measure a backend long unused
    SUBMITTED = "submitted"
    PREFLIGHT = "preflight"  # what the row that is asked before a batch showed
    HELD = "held"
    RECOVERED = "recovered"
    DOUBLE = "double"  # another batch of the same shard was found
    RESCUED = "rerouted"  # its rows are taken back
    SPLIT = "split"  # it was given up before it was sent
    ENDED = "ended"
    COLLECTED = "collected"
    LATE = "late"  # answers came after its end
    LEFT = "left"  # files that could not be deleted


PROBE = "probe"
"""The code of the rows routed to measure a backend long unused."""


class Happened(Protocol):
    """An event of a job, as what decides by it sees it."""

    @property
    def at(self) -> datetime:
        """When."""

    @property
    def kind(self) -> str:
        """What: an `EventKind`, or one of another version."""

    @property
    def code(self) -> str | None:
        """What of its kind, for programs; None where the kind says all."""

    @property
    def reason(self) -> str:
        """Why, for people."""

    @property
    def shard_id(self) -> str | None:
        """Of which shard."""
