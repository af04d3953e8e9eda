"""Stage 4: the time of each shard's next poll. Poll observations are kept in memory, as one value per phase."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.core.durations import MINUTE, spread
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.policy.batch_evidence import FILES_APPEAR, Denied, FileReading
from orchestrator.policy.overdue import Usual

UNKNOWN = Usual()
MOST_PUSHED = 10_000
"""Maximum number of announced batches kept until their poll. Some may belong to other programs."""
GROWTH = 1.5
LONGEST_FACTOR = 5
LONGEST = 10.0 * MINUTE
STALE = timedelta(minutes=10)
"""How long a call may take if its start time is still accepted as the present when it returns."""
BY_THE_CLOCK = ("looked_at", "resumed_at")
"""Times that are shifted only if the clock is set back. Unwatched time counts for them, so they otherwise stay."""


class SendPhase(Struct):
    """A shard on its way to its backend.

    `uploads` counts unusable inputs. `strays` counts uploads that were answered with a foreign file. `uploaded_at` is
    when the current upload was first visible; `refused_since` is when it was first refused.
    """

    uploads: int = 0
    strays: int = 0
    uploaded_at: datetime | None = None
    refused_since: datetime | None = None


class SearchPhase(Struct):
    """A shard whose create request was not answered.

    `lists` counts lists that lack its batch; `waited` is the time searched so far. The clock may change, or may have
    been wrong when the intent was recorded. So only the time between this process's polls counts, and each pause
    counts for no longer than planned.
    """

    lists: int = 0
    waited: timedelta = timedelta()
    looked_at: datetime | None = None

    def look(self, now: datetime, due: datetime, least: timedelta) -> None:
        """Count the time since the last poll, but only up to `due`, or for `least` if that is longer."""
        if self.looked_at is not None:
            self.waited += max(timedelta(), min(now, max(due, self.looked_at + least)) - self.looked_at)
        self.looked_at = now


class RunPhase(Struct):
    """A running batch.

    `denied` is set if its backend does not know it. `asked_at` is when orch first cancelled it. `over_at` is when a
    poll first saw that it had ended, while its files are not yet named.
    """

    denied: Denied | None = None
    asked_at: datetime | None = None
    over_at: datetime | None = None


class BestReading(Struct, frozen=True):
    """The best copy of a result file: its bytes, its number of rows, and the reason if it is incomplete."""

    bytes: int
    rows: int
    cut: str | None = None


class FilesPhase(Struct):
    """The files of an ended batch. `best` has the best copy of each.

    `whole` is the best reading of all files together, first reached at `unchanged_since`. `least_told` is the
    smallest total size, in bytes, that the backend reported. `begun_at` is the first poll of this process.
    `resumed_at` is the first poll after orch missed the end of the wait.
    """

    best: dict[str, BestReading] = field(default_factory=dict)
    whole: FileReading | None = None
    unchanged_since: datetime | None = None
    least_told: int | None = None
    begun_at: datetime | None = None
    looked_at: datetime | None = None
    resumed_at: datetime | None = None

    def look(self, until: datetime, now: datetime) -> datetime:
        """Return the latest time to wait for files. It is extended if orch was down, or the machine asleep, at
        `until`.

        The first poll afterwards may happen during an outage. One failed poll must not cause rows to be paid for
        again.
        """
        is_unwatched = self.looked_at is None or self.looked_at < until - FILES_APPEAR
        if now >= until and is_unwatched and self.resumed_at is None:
            self.resumed_at = now
        self.looked_at = now
        return until if self.resumed_at is None else max(until, self.resumed_at + FILES_APPEAR)

    def has_grown(self, told: int | None) -> bool:
        """True if the backend reports a larger size than the smallest size that it reported before."""
        if told is not None and (self.least_told is None or told < self.least_told):
            self.least_told = told
        return told is not None and told != self.least_told


Phase = SendPhase | SearchPhase | RunPhase | FilesPhase
P = TypeVar("P", SendPhase, SearchPhase, RunPhase, FilesPhase)


class PolledShard(Struct):
    """The next poll of a shard, the last state `seen` and when it `changed`, and the observations of its phase.

    `failing_since` is when calls to its backend began to fail; `busy_since` is when the backend ran out of room. `at`
    is the latest time observed. Clocks may be changed, and machines sleep. So orch measures waits in watched time:
    the pauses between polls, each for no longer than planned.
    """

    due: datetime
    seen: object
    changed: datetime
    at: datetime
    polls: int = 0
    failing_since: datetime | None = None
    busy_since: datetime | None = None
    _phase: Phase = field(default_factory=SendPhase)

    def phase(self, kind: type[P]) -> P:
        """Return the observations of this phase, which are empty if the shard was in another phase."""
        if not isinstance(self._phase, kind):
            self._phase = kind()
        return self._phase

    def pass_to(self, now: datetime) -> None:
        """Advance to `now`, and shift the stored times by the time that was not watched.

        Time was not watched if the clock was set back, or shows a longer pause than planned. Before a batch is sent,
        all time counts, because nothing is paid yet. A search counts its own pauses.
        """
        if now < self.at and self.at - now <= STALE:
            return  # a call took this long, and `now` is its start
        unwatched = now - max(self.at, min(now, max(self.due, self.at + timedelta(seconds=MINUTE))))
        if unwatched < timedelta() or (unwatched and not isinstance(self._phase, (SendPhase, SearchPhase))):
            for moved in (self, self._phase):
                _move(moved, unwatched)
        self.at = now


def _move(times: Struct, by: timedelta) -> None:
    for name in times.__struct_fields__:
        value = getattr(times, name)
        if isinstance(value, Denied):
            setattr(times, name, replace(value, since=value.since + by))
        elif isinstance(value, datetime) and (by < timedelta() or name not in BY_THE_CLOCK):
            setattr(times, name, value + by)


class PollSchedule(Struct):
    """The next poll of each shard. Kept in memory: after a restart, every shard is polled once."""

    _by_shard: dict[str, PolledShard] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pushed: dict[str, None] = field(default_factory=dict)
    _hurried: set[str] = field(default_factory=set)

    def push(self, batch_id: str) -> None:
        """Record a provider's event that a batch changed, so that the batch is polled immediately. Thread-safe.

        An event may arrive before the shard has its batch's id, so the event is kept until then. Events name the same
        batch as `batches/1a` or `1a`.
        """
        with self._lock:
            self._pushed[_name(batch_id)] = None
            if len(self._pushed) > MOST_PUSHED:
                del self._pushed[next(iter(self._pushed))]

    def of(self, shard: Shard, now: datetime) -> PolledShard:
        """Return the poll state of a shard, with its times advanced to `now`."""
        look = self._by_shard.setdefault(shard.id, PolledShard(now, None, now, now))
        look.pass_to(now)
        return look

    def is_due(self, shard: Shard, handle: BackendHandle, now: datetime) -> bool:
        """True if a shard is due for a poll. A shard at our own server is always due."""
        if handle.is_own:
            return True
        look = self.of(shard, now) if shard.id in self._by_shard else None
        # Taken before the poll, because a later event may report a change that this poll misses.
        if self._take_event(shard) and look is not None:
            look.due = now
        return look is None or now >= look.due

    def _take_event(self, shard: Shard) -> bool:
        name = _name(shard.batch_id or "")
        with self._lock:
            if not name or name not in self._pushed:
                return False
            del self._pushed[name]
            return True

    def looked(
        self,
        shard: Shard,
        handle: BackendHandle,
        now: datetime,
        *,
        seen: object = None,
        usual: Usual = UNKNOWN,
    ) -> datetime:
        """Record a poll and the state that it found. Return the time since which the shard has been in this state."""
        look = self.of(shard, now)
        look.failing_since = look.busy_since = None
        if look.seen != seen:
            look.seen, look.changed, look.polls = seen, now, 0
        else:
            look.polls += 1
        ends_in = None
        if usual.is_known and shard.submitted_at is not None:
            ends_in = usual.total_p50 - (now - shard.submitted_at).total_seconds()
        wait = next_look(handle.poll_seconds, look.polls, seed=f"{shard.id}/{look.polls}", ends_in=ends_in)
        look.due = now + timedelta(seconds=wait)
        return look.changed

    def failed(
        self,
        shard: Shard,
        handle: BackendHandle,
        now: datetime,
        retry_after: float | None = None,
        *,
        is_busy: bool = False,
    ) -> None:
        """Record a failed poll. The next poll comes after the usual pause, or at the time that the backend asked for.

        With `is_busy`, the backend answered, so it does not count as failing.
        """
        look = self.of(shard, now)
        look.polls += 1
        if is_busy:
            look.busy_since, look.failing_since = look.busy_since or now, None
        else:
            look.failing_since = look.failing_since or now
        wait = next_look(handle.poll_seconds, look.polls, seed=f"{shard.id}/{look.polls}")
        look.due = now + timedelta(seconds=max(wait, retry_after or 0.0))

    def hurry(self, shard: Shard, now: datetime) -> None:
        """Make a shard due immediately, for a reason of our own. Repeated calls have no effect."""
        if shard.id not in self._hurried and (look := self._by_shard.get(shard.id)) is not None:
            look.due = now
        self._hurried.add(shard.id)

    def forget(self, shard: Shard) -> None:
        """Forget a shard, so that its next stage is due at once."""
        self._by_shard.pop(shard.id, None)


def _name(batch_id: str) -> str:
    return batch_id.rpartition("/")[2]


def next_look(base: float, polls: int, *, seed: str, ends_in: float | None = None) -> float:
    """Return the seconds until the next poll of a batch, after this many polls without news. Pure.

    `base` is the shortest pause. Each pause is 1.5 times the previous one, up to five times `base` and ten minutes.
    Around the usual end of batches (`ends_in` seconds from now), the pause is `base` again. A fifth of the pause is
    random.
    """
    longest = max(base, min(LONGEST_FACTOR * base, LONGEST))
    pause = min(longest, base * GROWTH ** min(polls, 10))
    # A batch overdue by more than the longest pause is late for its own reasons, so frequent polls do not help.
    if ends_in is not None and ends_in > -longest:
        pause = min(pause, max(base, ends_in))
    return min(longest, spread(pause, seed))
