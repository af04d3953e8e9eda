"""How many rows an upstream is given at once. Found by itself: no constant to tune. Pure: time is an argument.

With vLLM's gauges the limit follows its queue: it doubles at every look while nothing waits there, and falls at once
to what runs plus a small standing queue where too much waits. So growth is clocked by a look at the gauges, not by a
generation, and a queue too long costs no throughput while one too short does.

Without gauges it doubles at every flight (as many answers as the limit) as long as throughput grows with it, then
stands where the last gain was, and tries a little more from time to time. While it is low, and all rows of a flight
plainly ran side by side, it leaps to four times as many; a leap that was too far is taken back by half.

An overloaded answer or a time-out cuts it by a third, once a flight; `Retry-After` closes it for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

START = 16
START_WITH_GAUGES = 64
"""A queue at vLLM costs nothing, and its gauges lag a whole step behind long prompts."""
FLOOR = 2
CUT = 0.7
FULL = 0.9
SEEN = 0.9
MOST_KV = 0.9
GAIN = 1.3
LEAP = 4
LEAP_BELOW = 256
ABREAST = 0.7
"""Such a share of a flight's rows ran side by side where none of them waited for another."""
SMALL_GAIN = 1.05
TRY_MORE = 1.25
TRY_MORE_SECONDS = 10.0
TRY_MORE_FLIGHTS = 20
SHORTEST_FLIGHT = 0.05
FIRST_CLOSED = 0.1
MOST_PAUSES = 50
MOST_REFUSED = 4
"""So many rows refused in a row, with none that ended, and at the lowest limit: then it is closed for a while."""
LONGEST_CLOSED = 5.0
"""A row that was told to come back later does; after so many seconds others try whether they are taken."""
INTERACTIVE_SECONDS = 10.0
INTERACTIVE_SHARE = 0.25


class Move(StrEnum):
    """Why a limit moved last: few words, for metrics; `ConcurrencyLimiter.reason` says it with figures."""

    START = "start"
    LEARNED = "learned"
    ROOM = "room"
    QUEUE = "queue"
    THROUGHPUT = "throughput"
    PLATEAU = "plateau"
    OVERLOAD = "overload"
    TIMEOUT = "timeout"
    PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True)
class Gauges:
    """What an upstream says of itself: requests running and waiting, KV-cache use from 0 to 1, preemptions so far.

    `cache_hits` of `cache_queries` prompt tokens so far were in its prefix cache.
    """

    running: int
    waiting: int
    kv_usage: float
    preemptions: float = 0.0
    cache_queries: float = 0.0
    cache_hits: float = 0.0


class ConcurrencyLimiter:
    """The concurrency limit of an upstream. `move` and `reason` say why it moved last, `growing` whether it seeks.

    It starts at `learned`, what was right before, or else at `start`. One that is `fixed` stays where it starts.
    """

    def __init__(self, ceiling: int, learned: int | None = None, start: int = START, *, fixed: bool = False) -> None:
        self.ceiling = ceiling
        self._is_fixed = fixed
        self.limit = min(start if learned is None else max(FLOOR, learned), ceiling)
        self.move = Move.START if learned is None else Move.LEARNED
        self.reason = "start" if learned is None else f"{self.limit} was right before"
        self.growing = True
        self.moves: dict[Move, int] = {}
        self._last_cut = float("-inf")
        self._closed_until = float("-inf")
        self._paused_until = float("-inf")
        self._refused = 0
        self._interactive_at = float("-inf")
        self._is_blind = False
        self._most_running = 0
        self._preemptions: float | None = None
        self._preempted_windows = 0
        self._flight = _Flight(may_leap=learned is None)

    @classmethod
    def fixed(cls, limit: int) -> ConcurrencyLimiter:
        """So many rows at once, whatever the upstream shows; only a `Retry-After` closes it for a while."""
        return cls(limit, start=limit, fixed=True)

    def room(self, now: float, interactive: int) -> int:
        """How many rows may be out now, beside that many synchronous requests of people who wait."""
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
        """The upstream refused a row that was sent at `sent_at`; one cut a flight answers all of them.

        `pause` is the first of the growing pauses for one that refuses everything and says not for how long.
        """
        if retry_after:
            self._closed_until = max(self._closed_until, now + min(retry_after, LONGEST_CLOSED))
        self._cut(now, sent_at, Move.OVERLOAD, "overload answered")
        if retry_after is None:
            # Who refuses at once and says not for how long would be asked with every row there is, again and again.
            self._refused += 1
            more = self._refused - MOST_REFUSED
            if more > 0 and self.limit <= FLOOR:
                self._paused_until = now + min(LONGEST_CLOSED, pause * min(2**more, MOST_PAUSES))

    def timed_out(self, now: float, sent_at: float) -> None:
        """A row that was sent at `sent_at` had no answer in time."""
        self._cut(now, sent_at, Move.TIMEOUT, "rows timed out")

    def _cut(self, now: float, sent_at: float, move: Move, reason: str) -> None:
        if sent_at >= self._last_cut:
            self._last_cut = now
            limit = self._flight.after_failure(int(self.limit * CUT))
            self._flight.settle(now)
            self._set(limit, move, reason)

    def completed(self, now: float, inflight: int, seconds: float = 0.0) -> None:
        """An answer came after so many seconds, `inflight` rows being out when it did."""
        self._refused, self._paused_until = 0, float("-inf")
        self._flight.answered(now, seconds)
        if inflight < FULL * self.limit:
            self._flight.was_full = False
        elif self._is_blind and self._flight.is_good(self.limit):
            self._by_throughput(now)  # not only at the next look: what was found is used at once

    def observe(self, now: float, inflight: int, gauges: Gauges | None) -> None:
        """Called a few times a second with what is in flight and, where there are any, the gauges."""
        is_alone = now - self._interactive_at >= INTERACTIVE_SECONDS
        self._is_blind = is_alone and gauges is None
        if not is_alone:
            self._flight.begin(now)  # what is measured beside others' requests says nothing of the limit
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
            # What runs there may be others' requests too: a queue is never a reason to send more.
            self.growing = False
            self._set(min(self.limit, gauges.running + queue), Move.QUEUE, f"{gauges.waiting} waiting")
            return
        full = inflight >= FULL * self.limit
        # Growth into what the engine does not see yet (HTTP, image decoding) would go on without end.
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
    """Throughput over one flight of rows, and the search for the limit that gives the most of it."""

    def __init__(self, *, may_leap: bool) -> None:
        self.since = float("-inf")
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
        """The limit after a failure in this flight: a leap that led to it is taken back by half."""
        return limit if self._leapt_from is None else min(limit, 2 * self._leapt_from)

    def begin(self, now: float) -> None:
        """Count from now on."""
        self.since, self.completed, self.was_full = now, 0, True

    def answered(self, now: float, seconds: float) -> None:
        """A row's answer came after so many seconds."""
        sent = now - seconds
        self._first_sent = min(self._first_sent, sent) if self.completed else sent
        self._last_answer, self._shortest = now, min(self._shortest, seconds)
        self.completed += 1

    def is_good(self, limit: int) -> bool:
        """Whether it is known before the flight is looked at that more can be had."""
        return self.completed >= limit and self._settled_at is None and self._is_abreast(limit)

    def _is_abreast(self, limit: int) -> bool:
        """Whether the rows of this flight ran side by side: as many came in a time as if none waited for another."""
        taken = self._last_answer - max(self.since, self._first_sent)
        return taken > 0 and self.completed * self._shortest >= ABREAST * limit * taken

    def settle(self, now: float) -> None:
        """Stand still for a while; what was best before is forgotten."""
        self._settled_at, self._flights, self._best_rate, self._best_limit = now, 0, 0.0, 0
        self._may_leap, self._leapt_from = False, None
        self.begin(now)

    def judge(self, now: float, rate: float, limit: int) -> tuple[int, Move]:
        """The next limit after a full flight at `limit` that gave `rate` answers a second."""
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
        # Rows change, and with them what can be had: the memory of the best fades.
        self._best_rate = max(rate, self._best_rate * 0.98)
        self._best_limit = limit
        if now - self._settled_at > TRY_MORE_SECONDS and self._flights >= TRY_MORE_FLIGHTS:
            self.tried = int(limit * TRY_MORE) + 1
            return self.tried, Move.THROUGHPUT
        return limit, Move.PLATEAU
