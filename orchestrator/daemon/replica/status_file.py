"""The state of a home's replica, for other commands on this machine. The module imports little, for fast read-only
commands.

The active daemon keeps the state in `replica-status.json`. A command waits until its records are on the replica, so
that they survive the loss of this machine.
"""

from __future__ import annotations

import time
from contextlib import suppress

import msgspec

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.replica.who_is_active import seconds
from orchestrator.daemon.lock import running_daemon
from orchestrator.settings.home import Home

LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 30.0


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of a replica: the daemon `pid` is active in this `generation`.

    All records before `sent_to` (seconds of this machine's own clock) are on the replica at `url`. `as_of` is the
    same moment in seconds since 1970.
    """

    pid: int
    url: str
    generation: int
    sent_to: float
    as_of: float

    @property
    def age(self) -> float:
        """Age of the last sent state, in seconds."""
        return max(0.0, seconds() - self.sent_to)


_decode = json_decoder(ReplicaStatus).decode


def read_status(home: Home) -> ReplicaStatus | None:
    try:
        return _decode(home.replica.read_bytes())
    except (FileNotFoundError, *JSON_ERRORS):
        return None


def write_status(home: Home, status: ReplicaStatus) -> None:
    """Write the replica's status file. Raises OSError."""
    # Readers never see half a file. The file is not synced: it changes every two seconds, and a power cut voids it.
    beside = home.replica.with_name(f".{home.replica.name}.partial")
    beside.write_bytes(msgspec.json.encode(status))
    beside.replace(home.replica)


def require_active(home: Home) -> None:
    """Raise UsageError unless a home's active daemon is on this machine: the state here may be old.

    Allows every home without a replica.
    """
    if not home.has_replica:
        return
    holder = running_daemon(home)
    if holder is None:
        raise UsageError(
            f"{home.root} has a replica, and no daemon of it is running here",
            hint="start `orch up --replica URL`, or use the machine whose daemon is active",
        )
    status = read_status(home)
    if status is None or status.pid != holder.pid:
        raise UsageError(
            f"{home.root} is standing by for another machine, whose daemon is active",
            hint="use that machine; this one has what it needs once it takes over",
        )


def wait_until_sent(home: Home, patience: float = PATIENCE_SECONDS) -> None:
    """Wait until all records of this process are on the home's replica, if it has one.

    Raises StorageError if this takes longer than `patience` seconds, or if no daemon runs here.
    """
    if not home.has_replica:
        return
    recorded = seconds()
    while (status := read_status(home)) is None or status.sent_to < recorded:
        if seconds() - recorded > patience or running_daemon(home) is None:
            raise StorageError(
                "the command is recorded here, but not on the home's replica yet",
                hint="look with `orch status` before you repeat it",
            )
        with suppress(OSError):
            home.replica_asked.touch()
        time.sleep(LOOK_SECONDS)
