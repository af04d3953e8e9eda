"""How far the replica of a home is, for other commands of this machine. Light: looking imports no more than this.

The engine keeps it in `replica-status.json` while it is the active one. What a command has recorded in the home is
acknowledged once it is on the replica: then the loss of this machine does not lose it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.replica.who_is_active import seconds
from orchestrator.core.wire import JSON_ERRORS
from orchestrator.engine.lock import running_engine
from orchestrator.settings.home import Home

LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 30.0


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The engine `pid` is the active one in this `generation`. All that was recorded before `sent_to` (seconds of
    this machine's own clock) is on the replica at `url`; `as_of` is the same in seconds since 1970.
    """

    pid: int
    url: str
    generation: int
    sent_to: float
    as_of: float

    @property
    def age(self) -> float:
        """For how many seconds nothing has been sent."""
        return max(0.0, seconds() - self.sent_to)


_decode = msgspec.json.Decoder(ReplicaStatus).decode


def read_status(home: Home) -> ReplicaStatus | None:
    """What the active engine said last; None where there is none."""
    try:
        return _decode(home.replica.read_bytes())
    except (FileNotFoundError, *JSON_ERRORS):
        return None


def write_status(home: Home, status: ReplicaStatus) -> None:
    """Say it. Raises OSError."""
    # Whole for who reads it, and not durable: it is said anew every two seconds, and worth nothing after a power cut.
    beside = home.replica.with_name(f".{home.replica.name}.partial")
    beside.write_bytes(msgspec.json.encode(status))
    beside.replace(home.replica)


def require_active(home: Home) -> None:
    """Raises UsageError where a home has a replica and its active engine is not here: what is here may be old."""
    if not home.has_replica:
        return
    holder = running_engine(home)
    if holder is None:
        raise UsageError(
            f"{home.root} has a replica, and no engine of it is running here",
            hint="start `orch up --replica URL`, or use the machine whose engine is active",
        )
    status = read_status(home)
    if status is None or status.pid != holder.pid:
        raise UsageError(
            f"{home.root} is standing by for another machine, whose engine is active",
            hint="use that machine; this one has what it needs once it takes over",
        )


def wait_until_sent(home: Home, patience: float = PATIENCE_SECONDS) -> None:
    """Return when all that this process has recorded is on the home's replica, where it has one.

    Raises StorageError where that takes too long, or the engine is no longer the active one.
    """
    if not home.has_replica:
        return
    recorded = seconds()
    while (status := read_status(home)) is None or status.sent_to < recorded:
        if seconds() - recorded > patience or running_engine(home) is None:
            raise StorageError(
                "what was asked for is recorded here, but not on the home's replica yet",
                hint="look with `orch status` before you repeat it",
            )
        _ask(home.replica_asked)
        time.sleep(LOOK_SECONDS)


def _ask(path: Path) -> None:
    with suppress(OSError):
        path.touch()
