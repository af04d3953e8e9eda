"""Stage 4: when each shard is polled next. The observations of polls are kept in memory, a value per phase."""

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
"""Maximum number of pushed batches kept until polled; some may belong to other programs with the same account."""
GROWTH = 1.5
LONGEST_FACTOR = 5
LONGEST = 10.0 * MINUTE
STALE = timedelta(minutes=10)
"""Maximum duration of a call whose start still counts as the present time once the call returns."""
BY_THE_CLOCK = ("looked_at", "resumed_at")
"""Fields that move only if the clock is set back: unwatched time after them counts as well."""


class SendPhase(Struct):
    """A shard on its way to its backend.

    `uploads` counts inputs that could not be used, `strays` uploads answered with a foreign file. `uploaded_at` is
    when the present upload was first visible, `refused_since` when it was first refused.
    """

    uploads: int = 0
    strays: int = 0
    uploaded_at: datetime | None = None
    refused_since: datetime | None = None


class SearchPhase(Struct):
    """A shard whose create request got no answer. `lists` counts lists without its batch, `waited` the time so far.

    Clocks may be changed, and a wrong clock may have stamped the intent. So only pauses between this process's polls
    count, and none of them for longer than planned.
    """

    lists: int = 0
    waited: timedelta = timedelta()
    looked_at: datetime | None = None

    def look(self, now: datetime, due: datetime, least: timedelta) -> None:
        """Count the pause since the last poll, but only until `due`, or for `least` if that is longer."""
        if self.looked_at is not None:
            self.waited += max(timedelta(), min(now, max(due, self.looked_at + least)) - self.looked_at)
        self.looked_at = now


class RunPhase(Struct):
    """A running batch. `denied`: its backend does not know the batch. `asked_at`: when it was first asked to end.

    `over_at` is when the batch was first seen to be over, while its files are not named.
    """

    denied: Denied | None = None
    asked_at: datetime | None = None
    over_at: datetime | None = None


class BestReading(Struct, frozen=True):
    """The best reading of one result file: its bytes, the rows that it names, and why it broke off."""

    bytes: int
    rows: int
    cut: str | None = None


class FilesPhase(Struct):
    """The files of a batch that is over: the `best` reading of each.

    `whole` is the best reading of all together, first reached at `unchanged_since`. `least_told` is the smallest size
    that the backend has reported. `resumed_at` is when polls began again, if orch missed the end of the wait.
    `begun_at` is when this process first polled.
    """

    best: dict[str, BestReading] = field(default_factory=dict)
    whole: FileReading | None = None
    unchanged_since: datetime | None = None
    least_told: int | None = None
    begun_at: datetime | None = None
    looked_at: datetime | None = None
    resumed_at: datetime | None = None

    def look(self, until: datetime, now: datetime) -> datetime:
        """Return the latest time to poll: later if orch was down, or the machine asleep, when the wait ended.

        The first poll may happen during an outage, and one failed poll must not cause rows to be paid again.
        """
        is_unwatched = self.looked_at is None or self.looked_at < until - FILES_APPEAR
        if now >= until and is_unwatched and self.resumed_at is None:
            self.resumed_at = now
        self.looked_at = now
        return until if self.resumed_at is None else max(until, self.resumed_at + FILES_APPEAR)

    def has_grown(self, told: int | None) -> bool:
        """True if the backend reports a larger size than before."""
        if told is not None and (self.least_told is None or told < self.least_told):
            self.least_told = told
        return told is not None and told != self.least_told


Phase = SendPhase | SearchPhase | RunPhase | FilesPhase
P = TypeVar("P", SendPhase, SearchPhase, RunPhase, FilesPhase)


class PolledShard(Struct):
    """The next poll of a shard, its last `seen` state, the time of that state (`changed`), and what its phase has
    shown.

    `failing_since`: when its backend's calls began to fail. `busy_since`: when the backend ran out of room. `at` is
    the latest time observed. Clocks may be changed, and machines sleep. So waits are measured in watched time: the
    pauses between polls, none of them longer than planned.
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
        """Return the observations of this phase; they begin empty if the shard was in another phase."""
        if not isinstance(self._phase, kind):
            self._phase = kind()
        return self._phase

    def pass_to(self, now: datetime) -> None:
        """Advance to `now`. If the clock shows more time than was watched, or was set back, the stored times move.

        Before a batch is sent all time counts, as nothing is paid yet; a search counts its own pauses.
        """
        if now < self.at and self.at - now <= STALE:
            return  # a call took as long, and `now` is when it began
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
    """When each shard is due for a poll. Kept in memory: after a restart, everything is polled once."""

    _by_shard: dict[str, PolledShard] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pushed: dict[str, None] = field(default_factory=dict)
    _hurried: set[str] = field(default_factory=set)

    def push(self, batch_id: str) -> None:
        """Note a provider's event that a batch changed, for an immediate poll. Callable from any thread.

        The event may come before the shard has its batch's id, so it is kept until then. It may name `batches/1a` or
        `1a` for the same batch.
        """
        with self._lock:
            self._pushed[_name(batch_id)] = None
            if len(self._pushed) > MOST_PUSHED:
                del self._pushed[next(iter(self._pushed))]

    def of(self, shard: Shard, now: datetime) -> PolledShard:
        """Return the poll state of a shard, with its times as they are seen from `now`."""
        look = self._by_shard.setdefault(shard.id, PolledShard(now, None, now, now))
        look.pass_to(now)
        return look

    def is_due(self, shard: Shard, handle: BackendHandle, now: datetime) -> bool:
        """True if a shard is due for a poll; our own server always is."""
        if handle.is_own:
            return True
        look = self.of(shard, now) if shard.id in self._by_shard else None
        # Taken before the poll: a later event may be about a change that this poll misses, and counts for the next.
        if self._take(shard) and look is not None:
            look.due = now
        return look is None or now >= look.due

    def _take(self, shard: Shard) -> bool:
        """Take an event about the shard's batch; True if there was one."""
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
        """Note a poll and what it saw; return since when the shard has been in this state."""
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
        """Note a failed poll. The next poll comes as after a poll without news, or when the backend asked for it.

        `is_busy` means that the backend answered, so the backend is not failing.
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
        """Poll a shard at once for a reason of our own; repeated calls have no effect."""
        if shard.id not in self._hurried and (look := self._by_shard.get(shard.id)) is not None:
            look.due = now
        self._hurried.add(shard.id)

    def forget(self, shard: Shard) -> None:
        """Forget a shard: its next stage is due at once."""
        self._by_shard.pop(shard.id, None)


def _name(batch_id: str) -> str:
    return batch_id.rpartition("/")[2]


def next_look(base: float, polls: int, *, seed: str, ends_in: float | None = None) -> float:
    """Return the seconds until the next poll of a batch, after this many polls without news. Pure.

    `base` is the shortest pause; each pause is 1.5 times the one before, up to five times `base` and ten minutes.
    When batches usually end (`ends_in` seconds from now) the pause is `base` again. A fifth of it is random.
    """
    longest = max(base, min(LONGEST_FACTOR * base, LONGEST))
    pause = min(longest, base * GROWTH ** min(polls, 10))
    # A batch overdue by more than the longest pause is late for its own reason: polling often does not help.
    if ends_in is not None and ends_in > -longest:
        pause = min(pause, max(base, ends_in))
    return min(longest, spread(pause, seed))
