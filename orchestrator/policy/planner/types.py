"""Inputs and results of the planner, as plain values.

Money is in Decimal dollars. Times are aware UTC datetimes, durations are in seconds. All rows of one planning have
the same task and model: rows of another task or model get their own plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import ROUND_UP, Decimal

from msgspec import Struct

from orchestrator.core.money import money
from orchestrator.core.term_words import TermWords
from orchestrator.policy.forecast import NORMAL, Pace, Turnaround

DAY = 86_400.0
ASSUMED_MARGIN = 120.0
MIN_ANSWER_SHARE = 0.15
"""Minimum share of the remaining time that is left for rows, however long the margin is."""
PROBE_ROWS, MAX_PROBE_SHARE = 20, 0.02
"""Maximum size of a probe: in rows, and as a share of all rows sent together with the probe."""
SLIPS = 0.003
"""Assumed P(a cancel takes far longer than planned)."""
MARGIN_SIGMAS, FINISH_SPREAD = 2.33, 0.5
"""The margin is the 99 % quantile (2.33 sigma) of a log-normal time to finish.

`FINISH_SPREAD` is the standard deviation of that time's logarithm.
"""


class Cost(Struct, frozen=True):
    """Dollars: `p50` is the expected value, `p95` the 95 % quantile. Per row, `p95` is for the mean of many rows."""

    p50: Decimal
    p95: Decimal


NOTHING = Cost(Decimal(0), Decimal(0))


CostSteps = tuple[tuple[float, Cost], ...]
"""Later prices of a row, as pairs of seconds from now and the cost from then on."""


class BatchOption(Struct, frozen=True):
    """A hosted Batch API: cheap, but with an uncertain turnaround.

    After a cancel, rows are free within `cancel_seconds` (95 %) and within `cancel_usual` (median; None: the same).
    With probability `slips`, a cancel takes far longer. A batch shows its first row after the share `begins` of its
    run time (1: no row before its end). `room` is the quota of enqueued rows (None: no limit). Other jobs fill
    `behind` rows of it. A batch has at least `least` rows, and expires after `window` seconds.

    The provider has not answered for `silent` seconds (0: it answers). If `cancels` is False, the provider cannot end
    a batch, and charges for all its rows. Otherwise, `paid_twice` is the share of nights on which it charged for rows
    that orch had given up. A local job may use the option only if `location` is `local`. `objection` is the reason
    not to send rows, or None.
    """

    backend: str
    location: str
    cost: Cost
    turnaround: Turnaround
    cancel_seconds: float = 600.0
    begins: float = 1.0
    room: int | None = None
    window: float = DAY
    objection: str | None = None
    behind: int = 0
    silent: float = 0.0
    slips: float = SLIPS
    cancel_usual: float | None = None
    least: int = 1
    cancels: bool = True
    paid_twice: float = 0.0


class SynchronousOption(Struct, frozen=True):
    """A route that answers row by row: our own server in front of a local engine, or of a flex or realtime tier.

    `pace.ahead` counts the rows of other jobs that go first. Rows taken back are free after `cancel_seconds`. A
    `timed` option is paid by the hour, so a row costs half at twice the speed. `cost_steps` has the option's later
    prices. `slow_with` has two figures for each batch backend: P(far slower than `pace` | batches there are late),
    and that speed as a share of `pace`. A local job may use the option only if `location` is `local`. `objection` is
    the reason not to send rows, or None.
    """

    backend: str
    location: str
    cost: Cost
    pace: Pace
    objection: str | None = None
    cancel_seconds: float = 30.0
    timed: bool = False
    cost_steps: CostSteps = ()
    slow_with: Mapping[str, tuple[float, float]] = {}


Option = BatchOption | SynchronousOption


class Claim(Struct, frozen=True):
    """Rows of other jobs, now at `source`. With probability `chance`, they need this job's routes, and go first
    there.
    """

    source: str
    rows: int
    chance: float


class Terms(Struct, frozen=True):
    """The job's requirements. `budget` is the money left for these rows, in dollars (None: no limit).

    `target` is the P(all rows done by the deadline) that a plan must reach. `late_cost` replaces the target with a
    price, in dollars per hour late. `margin` is the seconds from the last answer to the finished job.
    """

    deadline: datetime
    budget: Decimal | None = None
    target: float = 0.99
    late_cost: Decimal | None = None
    local_only: bool = False
    margin: float = ASSUMED_MARGIN

    def seconds(self, now: datetime) -> float:
        """Return the seconds left to answer rows: until the deadline, less the margin.

        Before the deadline, the result is at least 15 % of the time until the deadline, however long the margin is.
        After the deadline, it is negative: the time since the deadline.
        """
        left = (self.deadline - now).total_seconds()
        return max(left - self.margin, MIN_ANSWER_SHARE * left) if left > 0 else left

    def finishes(self, now: datetime) -> float:
        """Return P(the job finishes in time), given that its rows are answered within `seconds(now)`.

        The chance is below 1 if so little time is left that the rows take a part of the margin.
        """
        left = (self.deadline - now).total_seconds()
        if left <= 0 or left - self.margin >= MIN_ANSWER_SHARE * left:
            return 1.0
        spare = left * (1.0 - MIN_ANSWER_SHARE)
        return NORMAL.cdf(MARGIN_SIGMAS + math.log(spare / self.margin) / FINISH_SPREAD)


class Running(Struct, frozen=True):
    """A running batch with `rows` rows that have no result yet.

    If `is_over`, the provider has done the rows, and orch waits for their files. Done rows are billed in any case. If
    `is_probe`, the rows were sent to find out if the backend is faster now. If `has_begun`, the first row of the
    batch was seen done.
    """

    batch: str
    backend: str
    rows: int
    submitted_at: datetime
    is_over: bool = False
    is_probe: bool = False
    has_begun: bool = False


class Open(Struct, frozen=True):
    """A job's rows without an outcome, by place.

    `waiting` rows may go anywhere. `rerouted` rows came back from a cancelled batch. They go to no batch of the
    backends in `left`, at which the job has cancelled a batch. If `left` is empty, they go to no batch at all.
    `coming` rows are still in cancelled batches, and are free by `coming_at`. If `is_coming_late`, their cancel has
    taken longer than planned. These batches have done `coming_done` further rows.

    `synchronous` counts rows by backend. A row in two places counts at the synchronous backend only. `later` rows
    will be made from these answers. They cost `later_cost` in total (None: the price of the cheapest option).
    `claims` are the possible needs of other jobs.
    """

    waiting: int = 0
    rerouted: int = 0
    coming: int = 0
    coming_at: datetime | None = None
    running: tuple[Running, ...] = ()
    synchronous: tuple[tuple[str, int], ...] = ()
    later: int = 0
    claims: tuple[Claim, ...] = ()
    later_cost: Cost | None = None
    is_coming_late: bool = False
    coming_done: int = 0
    left: tuple[str, ...] = ()


class Route(Struct, frozen=True):
    """A backend that takes `rows` rows. `chance` is P(these rows are done by the deadline without a reroute)."""

    backend: str
    rows: int
    cost: Cost
    done_p50: datetime | None
    done_p95: datetime | None
    chance: float
    reason: str


class Refusal(Struct, frozen=True):
    """A backend that takes no rows, and the reason. Its figures are for all rows of the job; None if unknown."""

    backend: str
    reason: str
    cost: Cost | None = None
    done_p50: datetime | None = None
    done_p95: datetime | None = None
    chance: float | None = None


class Reroute(Struct, frozen=True):
    """A plan to cancel the batches that are still running at the time `at`.

    Their open rows go to the backends `to`, cheapest first. `needed` is P(a reroute becomes necessary).
    """

    at: datetime
    to: tuple[str, ...]
    needed: float


class PlanVerdict(Struct, frozen=True):
    """Result of checking a plan against the terms, with the reason and the nearest feasible terms.

    `deadline` is the earliest deadline that the budget allows. `budget` is the smallest budget that the deadline
    allows. Each is None if the plan holds, or if orch finds no feasible value.
    """

    holds: bool
    reason: str
    deadline: datetime | None = None
    budget: Decimal | None = None

    def nearest(self, words: TermWords) -> list[str]:
        """Return the nearest feasible terms, in the form in which a user writes them."""
        told = []
        if self.deadline is not None:
            told.append(words.term("deadline", self.deadline.astimezone().isoformat(timespec="minutes")))
        if self.budget is not None:
            cents = Decimal("0.01") if self.budget >= 1 else Decimal("0.000001")
            told.append(words.term("budget", self.budget.quantize(cents, ROUND_UP).normalize()))
        return told


class Probe(Struct, frozen=True):
    """A few rows that measure a route that was never measured, or not used for a long time.

    `at_most` is the 95 % quantile of their cost, in dollars.
    """

    backend: str
    rows: int
    at_most: Decimal
    reason: str


class FirstRow(Struct, frozen=True):
    """A row sent to a backend before its batch. `at_most` is its cost in dollars, None if its answer has no length
    limit.

    `saves` is the expected saving of its batches, in dollars, from the cache that the row writes. It is None without
    a cache.
    """

    backend: str
    model: str
    at_most: Decimal | None
    saves: Decimal | None = None


class Plan(Struct, frozen=True):
    """The routes of a job's rows, with cost, time and chance.

    `at_most` is the 95 % quantile of the cost, including a reroute; the budget covers it. `done_p50` and `done_p95`
    are quantiles of the time at which all rows are done; None if unknown. If `routes` is empty, no plan is possible,
    or there are no rows; `verdict` has the reason. The rows of `probe` are part of the plan. `first_rows` are sent
    before the batches. Rows wait until `starts_at`, when a price falls (None: they are sent now).
    """

    routes: tuple[Route, ...]
    refused: tuple[Refusal, ...]
    reroute: Reroute | None
    expected: Decimal
    at_most: Decimal
    chance: float
    verdict: PlanVerdict
    done_p50: datetime | None = None
    done_p95: datetime | None = None
    probe: Probe | None = None
    first_rows: tuple[FirstRow, ...] = ()
    starts_at: datetime | None = None


class Send(Struct, frozen=True):
    """An order to send rows to a backend.

    `source` is the backend that the rows leave, or None for `waiting` and `rerouted` rows.
    """

    rows: int
    backend: str
    source: str | None = None


class Decision(Struct, frozen=True):
    """Orders of a replanning: batches to cancel and rows to send.

    `next_look` is the time of the next replanning. `chance` is P(all rows done by the deadline) after these orders,
    and `expected` is the cost of the open rows. `reroute` is the planned reroute of batches that keep running. If
    `waits`, the rows that are not sent wait on purpose. From `gives_up_at` on, orch no longer waits for cancelled
    batches to end, because their rows are needed elsewhere (None: orch waits without limit).
    """

    cancel: tuple[str, ...]
    sends: tuple[Send, ...]
    reason: str
    next_look: datetime
    chance: float
    expected: Decimal
    reroute: Reroute | None
    waits: bool = False
    gives_up_at: datetime | None = None


class Outlook(Struct, frozen=True):
    """State of a job: P(all rows done by the deadline), expected cost of the open rows, and the planned reroute.

    If `waits`, the rows wait for a lower price, as `reason` says.
    """

    chance: float
    expected: Decimal
    reroute: Reroute | None
    reason: str
    waits: bool = False

    def __str__(self) -> str:
        return f"{self.reason}; {money(self.expected)} more expected"

    __repr__ = __str__
