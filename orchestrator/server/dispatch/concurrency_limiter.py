"""Learns how many rows an upstream gets at once, without a constant to tune. Pure: time is an argument.

With vLLM's gauges, the limit follows vLLM's queue. While no request waits, each reading doubles the limit. If too
many wait, the limit falls at once to the running requests plus a small standing queue. So the limit grows at the pace
of the readings, not of the answers. A queue that is too short costs throughput; a queue that is too long does not.

Without gauges, the limiter measures flights. A flight is as many answers as the limit. Each flight doubles the limit
while throughput grows. Then the limit stays at the last value that raised throughput, and tries a little more from
time to time. If all rows of a flight clearly ran in parallel, a low limit is multiplied by four. If that was too far,
it is halved.

A refusal for overload or a time-out cuts the limit by a third, at most once per flight. `Retry-After` closes the
limiter for a while.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

NEVER = float("-inf")
START = 16
START_WITH_GAUGES = 64
"""First limit with gauges. A queue at vLLM costs nothing; with long prompts, its gauges lag by a whole step."""
FLOOR = 2
CUT = 0.7
FULL = 0.9
SEEN = 0.9
MOST_KV = 0.9
GAIN = 1.3
LEAP = 4
LEAP_BELOW = 256
ABREAST = 0.7
"""Minimum share of a flight's rows that ran in parallel, to conclude that no row waited for another."""
SMALL_GAIN = 1.05
TRY_MORE = 1.25
TRY_MORE_SECONDS = 10.0
TRY_MORE_FLIGHTS = 20
SHORTEST_FLIGHT = 0.05
FIRST_CLOSED = 0.1
MOST_PAUSES = 50
MOST_REFUSED = 4
"""Consecutive refusals without `Retry-After`, at the lowest limit, after which the limiter closes for a while."""
LONGEST_CLOSED = 5.0
"""Seconds after which other rows are tried, even if a refusal asked for a longer wait."""
INTERACTIVE_SECONDS = 10.0
INTERACTIVE_SHARE = 0.25


class Move(StrEnum):
    """Cause of the limit's last change, as a label for metrics. `ConcurrencyLimiter.reason` adds figures."""

    START = "start"
    LEARNED = "learned"
    ROOM = "room"
    QUEUE = "queue"
    THROUGHPUT = "throughput"
    PLATEAU = "plateau"
    OVERLOAD = "overload"
    TIMEOUT = "timeout"
    PREEMPTION = "preemption"


class Gauges(Struct, frozen=True):
    """An upstream's own metrics: requests running and waiting, KV-cache use from 0 to 1, and preemptions.

    Preemptions, `cache_queries` and `cache_hits` are totals since the engine's start. `cache_queries` counts prompt
    tokens looked up in the prefix cache; `cache_hits` counts those found.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0


class ConcurrencyLimiter:
    """The concurrency limit of an upstream. `move` and `reason` explain its last change.

    `growing` is True while the limiter still looks for the best limit. The limit starts at `learned`, the best limit
    of an earlier run, or otherwise at `start`. A `fixed` limit never changes.
    """

    def __init__(self, ceiling: int, learned: int | None = None, start: int = START, *, fixed: bool = False) -> None:
        self.ceiling = ceiling
        self._is_fixed = fixed
        self.limit = min(start if learned is None else max(FLOOR, learned), ceiling)
        self.move = Move.START if learned is None else Move.LEARNED
        self.reason = "start" if learned is None else f"{self.limit} was right before"
        self.growing = True
        self.moves: dict[Move, int] = {}
        self._last_cut = NEVER
        self._closed_until = NEVER
        self._paused_until = NEVER
        self._refused = 0
        self._interactive_at = NEVER
        self._is_blind = False
        self._most_running = 0
        self._preemptions: float | None = None
        self._preempted_windows = 0
        self._flight = _Flight(may_leap=learned is None)

    @classmethod
    def fixed(cls, limit: int) -> ConcurrencyLimiter:
        """Return a limiter with a constant limit. Only a `Retry-After` closes the limiter for a while."""
        return cls(limit, start=limit, fixed=True)

    def room(self, now: float, interactive: int) -> int:
        """Return how many rows may be in flight now, besides `interactive` interactive requests."""
        if now < self._closed_until or now < self._paused_until:
            return 0
        if interactive:
            self._interactive_at = now
        if now - self._interactive_at < INTERACTIVE_SECONDS:
            return max(FLOOR, int(self.limit * INTERACTIVE_SHARE))
        return self.limit

    def overloaded(
        self, now: float, sent_at: float, retry_after: float | None = None, *, pause: float = FIRST_CLOSED
    ) -> None:
        """Record that the upstream refused a row that was sent at `sent_at`. All refusals of one flight cause one
        cut.

        `pause` is the first of the growing pauses. They apply if an upstream refuses everything without a
        `Retry-After`.
        """
        if retry_after:
            self._closed_until = max(self._closed_until, now + min(retry_after, LONGEST_CLOSED))
        self._cut(now, sent_at, Move.OVERLOAD, "overload answered")
        if retry_after is None:
            # An upstream that refuses at once without `Retry-After` would otherwise get every row again and again.
            self._refused += 1
            more = self._refused - MOST_REFUSED
            if more > 0 and self.limit <= FLOOR:
                self._paused_until = now + min(LONGEST_CLOSED, pause * min(2**more, MOST_PAUSES))

    def timed_out(self, now: float, sent_at: float) -> None:
        """Record that a row sent at `sent_at` timed out."""
        self._cut(now, sent_at, Move.TIMEOUT, "rows timed out")

    def _cut(self, now: float, sent_at: float, move: Move, reason: str) -> None:
        if sent_at >= self._last_cut:
            self._last_cut = now
            limit = self._flight.after_failure(int(self.limit * CUT))
            self._flight.settle(now)
            self._set(limit, move, reason)

    def completed(self, now: float, inflight: int, seconds: float = 0.0) -> None:
        """Record an answer that took `seconds`. `inflight` is the number of rows in flight when it came, including
        its own.
        """
        self._refused, self._paused_until = 0, NEVER
        self._flight.answered(now, seconds)
        if inflight < FULL * self.limit:
            self._flight.was_full = False
        elif self._is_blind and self._flight.completed >= self.limit and self._flight.is_good(self.limit):
            self._by_throughput(now)  # at once, not only at the next reading

    def observe(self, now: float, inflight: int, gauges: Gauges | None) -> None:
        """Adjust the limit to the rows in flight and the gauges, if any. Call this a few times a second."""
        is_alone = now - self._interactive_at >= INTERACTIVE_SECONDS
        self._is_blind = is_alone and gauges is None
        if not is_alone:
            self._flight.begin(now)  # throughput measured with interactive requests says nothing about the limit
        elif gauges is not None:
            self._by_gauges(now, inflight, gauges)
        else:
            self._by_throughput(now)

    def _by_gauges(self, now: float, inflight: int, gauges: Gauges) -> None:
        self._most_running = max(self._most_running, gauges.running)
        if self.move is Move.START and self.limit < START_WITH_GAUGES:
            self._set(START_WITH_GAUGES, Move.START, "start, and its queue can be seen")
            return
        if self._is_preempting(gauges):
            self._cut(now, now, Move.PREEMPTION, f"preemptions at KV {gauges.kv_usage:.0%}")
            return
        queue = min(64, max(8, int(0.08 * gauges.running)))
        if gauges.waiting > 2 * queue:
            # Running requests may be other clients': a queue is never a reason to send more.
            self.growing = False
            self._set(min(self.limit, gauges.running + queue), Move.QUEUE, f"{gauges.waiting} waiting")
            return
        full = inflight >= FULL * self.limit
        # The engine may not see rows yet (HTTP, image decoding): growing because of them would never end.
        seen = gauges.running + gauges.waiting >= SEEN * inflight
        self.growing = gauges.waiting < queue / 2 and gauges.kv_usage < MOST_KV
        if full and seen and self.growing:
            more = self.limit * 2 if gauges.waiting == 0 else self.limit + queue
            most = max(START_WITH_GAUGES, 2 * self._most_running + queue)
            self._set(max(self.limit, min(more, most)), Move.ROOM, f"{gauges.running} run, {gauges.waiting} wait")

    def _is_preempting(self, gauges: Gauges) -> bool:
        before, self._preemptions = self._preemptions, gauges.preemptions
        more = before is not None and gauges.preemptions > before
        self._preempted_windows = self._preempted_windows + 1 if more else 0
        return self._preempted_windows >= 2

    def _by_throughput(self, now: float) -> None:
        flight = self._flight
        if not flight.was_full:
            flight.begin(now)
            return
        elapsed = now - flight.since
        if elapsed < SHORTEST_FLIGHT or flight.completed < self.limit:
            return
        rate = flight.completed / elapsed
        limit, move = flight.judge(now, rate, self.limit)
        self.growing = move is Move.THROUGHPUT
        self._set(limit, move, f"{rate:.3g} rows/s at {self.limit}")
        flight.begin(now)

    def _set(self, limit: int, move: Move, reason: str) -> None:
        limit = min(self.ceiling, max(FLOOR, limit))
        if limit != self.limit and not self._is_fixed:
            self.limit, self.move, self.reason = limit, move, reason
            self.moves[move] = self.moves.get(move, 0) + 1


class _Flight:
    """Throughput over one flight of rows, and the search for the limit with the highest throughput."""

    def __init__(self, *, may_leap: bool) -> None:
        self.since = NEVER
        self.completed = 0
        self.was_full = False
        self.tried = 0
        self._best_rate = 0.0
        self._best_limit = 0
        self._settled_at: float | None = None
        self._flights = 0
        self._may_leap = may_leap
        self._leapt_from: int | None = None
        self._first_sent = self._last_answer = 0.0
        self._shortest = float("inf")

    def after_failure(self, limit: int) -> int:
        """Return the limit after a failure in this flight. If a fourfold increase led to the failure, the limit is
        halved.
        """
        return limit if self._leapt_from is None else min(limit, 2 * self._leapt_from)

    def begin(self, now: float) -> None:
        self.since, self.completed, self.was_full = now, 0, True

    def answered(self, now: float, seconds: float) -> None:
        sent = now - seconds
        if sent < self._first_sent or not self.completed:
            self._first_sent = sent
        if seconds < self._shortest:
            self._shortest = seconds
        self._last_answer = now
        self.completed += 1

    def is_good(self, limit: int) -> bool:
        """True if a full flight already shows that a higher limit is possible."""
        return self._settled_at is None and self._is_abreast(limit)

    def _is_abreast(self, limit: int) -> bool:
        """True if the rows of this flight ran in parallel. They were answered as fast as if none had waited."""
        taken = self._last_answer - max(self.since, self._first_sent)
        return taken > 0 and self.completed * self._shortest >= ABREAST * limit * taken

    def settle(self, now: float) -> None:
        """Keep the current limit for a while, and forget the best throughput so far."""
        self._settled_at, self._flights, self._best_rate, self._best_limit = now, 0, 0.0, 0
        self._may_leap, self._leapt_from = False, None
        self.begin(now)

    def judge(self, now: float, rate: float, limit: int) -> tuple[int, Move]:
        """Return the next limit and its cause, after a full flight at `limit` with `rate` answers per second."""
        self._flights += 1
        if self._settled_at is None:
            is_abreast, leapt_from = self._is_abreast(limit), self._leapt_from
            self._leapt_from = None
            if leapt_from is not None and not is_abreast:
                self._may_leap = False
                return 2 * leapt_from, Move.THROUGHPUT
            if is_abreast or rate > self._best_rate * GAIN:
                self._best_rate, self._best_limit = rate, limit
                if self._may_leap and is_abreast and limit < LEAP_BELOW:
                    self._leapt_from = limit
                    return limit * LEAP, Move.THROUGHPUT
                return limit * 2, Move.THROUGHPUT
            self._settled_at, self._flights = now, 0
            return max(int(self._best_limit * 1.1), FLOOR), Move.PLATEAU
        if limit == self.tried:
            self.tried = 0
            if rate > self._best_rate * SMALL_GAIN:
                self._best_rate, self._best_limit = rate, limit
                self._settled_at = None
                return int(limit * TRY_MORE) + 1, Move.THROUGHPUT
            self._settled_at, self._flights = now, 0
            return self._best_limit, Move.PLATEAU
        # Rows change, and with them the possible throughput, so the remembered best throughput decays.
        self._best_rate = max(rate, self._best_rate * 0.98)
        self._best_limit = limit
        if now - self._settled_at > TRY_MORE_SECONDS and self._flights >= TRY_MORE_FLIGHTS:
            self.tried = int(limit * TRY_MORE) + 1
            return self.tried, Move.THROUGHPUT
        return limit, Move.PLATEAU
