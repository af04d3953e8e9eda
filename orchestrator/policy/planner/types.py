"""What the planner is told, and what it answers: plain values.

Money is Decimal dollars, times are aware UTC datetimes and lengths of time seconds. All rows of one planning are
alike (one task and model, say): plan apart what costs or takes something else.
"""

from __future__ import annotations

import math
from datetime import datetime
from decimal import ROUND_UP, Decimal

from msgspec import Struct

from orchestrator.policy.forecast import NORMAL, Pace, Turnaround

DAY = 86_400.0
ASSUMED_MARGIN = 120.0
LEAST = 0.15
SLIPS = 0.003
"""P(a cancel takes far longer than planned), where nothing of the kind was seen."""
SURE, FINISH_SPREAD = 2.33, 0.5
"""A margin is kept with 99 %; how far jobs are apart in how long they take to finish (a spread of the logarithm)."""


class Cost(Struct, frozen=True):
    """Dollars a row: what is expected, and what rows on the whole do not exceed (95 %)."""

    p50: Decimal
    p95: Decimal


NOTHING = Cost(Decimal(0), Decimal(0))


CostSteps = tuple[tuple[float, Cost], ...]
"""What a row costs from later on: seconds from now, and the cost from then on."""


class BatchOption(Struct, frozen=True):
    """A hosted Batch API: cheap, done at a time of its own.

    `cancel_seconds` pass until the rows of a cancelled batch are free, far more with the chance `slips`, and with a
    chance of one half no more than `cancel_usual` (None: as many). It keeps the
    share `kept` of them, less where it is rerouted sooner than batches usually are done. `room` rows fit what may
    be enqueued there at once (None: any number), `behind` those that others have there now. A batch expires after
    `window` seconds. The provider has been `silent` for so many seconds. `objection` says why none may be sent.
    """

    backend: str
    location: str
    cost: Cost
    turnaround: Turnaround
    cancel_seconds: float = 600.0
    kept: float = 0.2
    room: int | None = None
    window: float = DAY
    objection: str | None = None
    behind: int = 0
    silent: float = 0.0
    slips: float = SLIPS
    cancel_usual: float | None = None


class SynchronousOption(Struct, frozen=True):
    """Row by row at a pace: our own server before a local engine, or before a provider's flex or realtime tier.

    The `pace` counts as `ahead` what other jobs have there that goes first. Rows that leave it are free after
    `cancel_seconds`. A `timed` one is paid by the hour: if it is twice as fast, a row costs half. `cost_steps` say
    when its price changes.
    """

    backend: str
    location: str
    cost: Cost
    pace: Pace
    objection: str | None = None
    cancel_seconds: float = 30.0
    timed: bool = False
    cost_steps: CostSteps = ()


Option = BatchOption | SynchronousOption


class Claim(Struct, frozen=True):
    """Rows of other jobs, now at `source`, that may come to need the same routes and would go first; with which P."""

    source: str
    rows: int
    chance: float


class Terms(Struct, frozen=True):
    """What the job asks for. `budget` is what may still be spent on these rows.

    `target` is the P(all rows done by the deadline) that a plan must reach. With `late_cost`, dollars an hour late,
    the deadline has its price instead. `margin` seconds lie between the last row's answer and the finished job.
    """

    deadline: datetime
    budget: Decimal | None = None
    target: float = 0.99
    late_cost: Decimal | None = None
    local_only: bool = False
    margin: float = ASSUMED_MARGIN

    def seconds(self, now: datetime) -> float:
        """Until when rows have to be answered, in seconds; negative once the deadline is over.

        In the last minutes, where the margin leaves next to nothing, as soon as can be.
        """
        left = (self.deadline - now).total_seconds()
        return max(left - self.margin, LEAST * left) if left > 0 else left

    def finishes(self, now: datetime) -> float:
        """P(the job is finished in time, once its rows are answered by then): less than 1 within the margin."""
        left = (self.deadline - now).total_seconds()
        if left <= 0 or left - self.margin >= LEAST * left:
            return 1.0
        spare = left * (1.0 - LEAST)
        return NORMAL.cdf(SURE + math.log(spare / self.margin) / FINISH_SPREAD)


class Running(Struct, frozen=True):
    """A batch that runs: `rows` have no result yet, and it was sent at `submitted_at`.

    One that `is_over` has done them, and its answers are waited for: it is paid for, whatever becomes of them.
    """

    batch: str
    backend: str
    rows: int
    submitted_at: datetime
    is_over: bool = False


class Open(Struct, frozen=True):
    """A job's rows without an outcome, and where they are.

    `waiting` rows may go anywhere. `rerouted` ones came back from a batch that was cancelled for the deadline, and go
    to no other one; `coming` are still in such batches, expected by `coming_at`. `synchronous` counts
    rows by the backend that works on them. A row that runs in two places stands at the synchronous one only. `later`
    rows are made of the answers to these, for `later_cost` all together where they are not like these. `claims` are
    what other jobs may come to need.
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


class Route(Struct, frozen=True):
    """A backend that takes so many rows; `chance` is P(they are done there by the deadline, without a reroute)."""

    backend: str
    rows: int
    cost: Cost
    done_p50: datetime | None
    done_p95: datetime | None
    chance: float
    reason: str


class Refusal(Struct, frozen=True):
    """A backend that takes none, and why; the figures are those of all rows there, None where they say nothing."""

    backend: str
    reason: str
    cost: Cost | None = None
    done_p50: datetime | None = None
    done_p95: datetime | None = None
    chance: float | None = None


class Reroute(Struct, frozen=True):
    """At `at`, batches that still run are cancelled and their leftovers go `to` these backends, the cheapest first.

    `needed` is the P(that it comes to this).
    """

    at: datetime
    to: tuple[str, ...]
    needed: float


class PlanVerdict(Struct, frozen=True):
    """Whether the plan keeps the terms; where not, which one breaks, and the nearest that would hold.

    `deadline` is the earliest that holds within the budget, `budget` the least that holds the deadline.
    """

    holds: bool
    reason: str
    deadline: datetime | None = None
    budget: Decimal | None = None

    def nearest(self) -> list[tuple[str, str]]:
        """What would hold, as options of the command line."""
        found = []
        if self.deadline is not None:
            found.append(("--deadline", self.deadline.astimezone().isoformat(timespec="minutes")))
        if self.budget is not None:
            cents = Decimal("0.01") if self.budget >= 1 else Decimal("0.000001")
            found.append(("--budget", f"{self.budget.quantize(cents, ROUND_UP).normalize():f}"))
        return found


class Probe(Struct, frozen=True):
    """A few rows that go to a route to learn how fast it is: one long unused, or never measured; they cost `at_most`
    (95 %)."""

    backend: str
    rows: int
    at_most: Decimal
    reason: str


class FirstRow(Struct, frozen=True):
    """A row that is asked at a backend before its batch; `at_most` are dollars, None if its answer has no bound."""

    backend: str
    model: str
    at_most: Decimal | None


class Plan(Struct, frozen=True):
    """Where the rows go. `at_most` holds for the dearest candidate plan that the plan may take; the budget covers it.

    All is done by `done_p50` and `done_p95` with these chances, None where nobody can say.

    Without routes there is no way, or none that the budget pays for. A `probe` takes some of
    the rows. `first_rows` are asked before the batches. Rows wait until `starts_at`, when a price falls; None: they
    are sent now.
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
    """Rows that go to a backend: of those `waiting` or `rerouted` where `source` is None, else from that backend."""

    rows: int
    backend: str
    source: str | None = None


class Decision(Struct, frozen=True):
    """What to do at this look: cancel batches, send rows; where there is neither, go on. Look again at `next_look`.

    `chance` is P(all rows done by the deadline) and
    `expected` what the open rows will cost, both if this is done; `reroute` is when batches that run on would be
    rerouted. With `waits`, the rows that are not sent wait on purpose.
    """

    cancel: tuple[str, ...]
    sends: tuple[Send, ...]
    reason: str
    next_look: datetime
    chance: float
    expected: Decimal
    reroute: Reroute | None
    waits: bool = False


class Outlook(Struct, frozen=True):
    """How a job stands: P(all rows done by the deadline), what the open rows should cost, and the reroute."""

    chance: float
    expected: Decimal
    reroute: Reroute | None
    reason: str
