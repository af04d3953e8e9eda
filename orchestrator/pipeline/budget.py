"""Budgets as hard limits, of one job or shared: costs booked and in flight never exceed them.

Upstreams paid by the hour show their cost while they run, so a job is stopped in time. Rows paid by the token have a
bound before they are sent: their prompts, with a margin for our estimate, plus their longest answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core.errors import RefusedError, UsageError
from orchestrator.core.events import EventKind
from orchestrator.core.model import Job, Usage
from orchestrator.core.money import amount, money, up_to
from orchestrator.core.shards import AHEAD, AT_BACKEND, Shard, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle, Prices
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.routes import models_of
from orchestrator.policy import budgets
from orchestrator.policy.budgets import BudgetStanding, Period, TooDear
from orchestrator.policy.model_names import resolve_model
from orchestrator.settings.backends import TimedBackend
from orchestrator.settings.config import Budget, Config
from orchestrator.store import Store

# Maximum seconds from a poll of a batch to the end of its last row, if the next poll ends it.
REACTION_SECONDS = 2.0
MARGIN = Decimal("1.5")
"""Factor on estimated prompt tokens. Text that people write has at most this multiple of the estimate."""
SETTLED_AFTER = timedelta(days=1)
"""Maximum delay of a ledger line.

A line has the time of the batch's poll, but it may be written up to a day later.
"""
_NO_BOUND = "set `max_tokens` on every row of the batch file, or run it without a budget"
_UNBOOKED = (ShardState.SUBMITTED, ShardState.ENDED)

HandleOf = Callable[[Shard], BackendHandle]
ModelOf = Callable[[Job, Shard], str]


def used_up(
    job: Job, shards: Sequence[Shard], booked: Callable[[], Decimal], handle_of: HandleOf, model_of: ModelOf
) -> str | None:
    """Return why a job must be stopped now, or None. Upstreams cost money until they have stopped.

    Batches paid by the token cannot be taken back, so their highest cost counts as spent. `booked` adds up the job's
    ledger lines, and is called only if the sum matters.
    """
    if job.budget is None or job.cancel_requested_at is not None:
        return None
    handles = {shard.backend: handle_of(shard) for shard in shards if shard.state in AHEAD}
    ahead = sum(
        (handle.price.of_time(REACTION_SECONDS * handle.upstreams).cost for handle in handles.values()), Decimal(0)
    )
    if not ahead:
        return None
    spent = booked() + _by_time((shard for shard in shards if shard.state in _UNBOOKED), handle_of)
    spent += sum(
        (_at_most(job, one, handle_of, model_of) or Decimal(0) for one in shards if one.state in AT_BACKEND),
        Decimal(0),
    )
    if spent + ahead < job.budget:
        return None
    more = f"{money(spent)} spent, and until the engine has stopped, up to {up_to(ahead)} more"
    return f"the budget of {amount(job.budget)} covers no further row: {more}"


def no_room(
    job: Job,
    shard: Shard,
    others: Sequence[Shard],
    booked: Callable[[], Decimal],
    handle_of: HandleOf,
    model_of: ModelOf,
) -> str | None:
    """Return why a shard does not fit into the rest of the budget yet, or None if it may be sent.

    `booked` adds up the job's ledger lines, and is called only if the sum matters. Raises TooDear if the shard can
    never fit.
    """
    if job.budget is None or (wanted := _at_most(job, shard, handle_of, model_of)) is None:
        return None
    flying = [other for other in others if other.state in AT_BACKEND]
    bounds = [_at_most(job, other, handle_of, model_of) or Decimal(0) for other in flying]
    in_flight = sum(bounds, _by_time(flying, handle_of))
    if (spent := booked()) + in_flight + wanted <= job.budget:
        return None
    limit = amount(job.budget)
    told = f"this batch may cost up to {up_to(wanted)}, and {money(spent)} of the budget of {limit} is spent"
    if in_flight:
        return f"{told}, up to {up_to(in_flight)} more in flight"
    raise TooDear(
        f"job {job.id}: {told}",
        hint="raise the budget, lower max_tokens, or make batches smaller (`limits` of the backend in orch.toml)",
        wanted=wanted,
        left=job.budget - spent,
    )


def _by_time(shards: Iterable[Shard], handle_of: HandleOf) -> Decimal:
    return sum((handle_of(shard).price.of_time(shard.provider_seconds).cost for shard in shards), Decimal(0))


def _at_most(job: Job, shard: Shard, handle_of: HandleOf, model_of: ModelOf) -> Decimal | None:
    """Return the highest cost of a shard in dollars, or None if it is paid by the hour.

    Raises RefusedError if the shard is paid by the token and has rows with unlimited answers.
    """
    cost = bound(handle_of(shard).price, model_of(job, shard), shard.tokens, shard.max_output)
    if cost is not None and shard.max_output is None:
        raise RefusedError(f"job {job.id} has a budget, and rows with unlimited answers", hint=_NO_BOUND)
    return cost


def bound(price: Prices, model: str, tokens: int, most: int | None) -> Decimal | None:
    """Return the highest cost in dollars of rows with bounded answers, or None if they are paid by the hour.

    A provider may write prompts to its cache unasked, and charge more for these tokens.
    """
    fed = int(tokens * MARGIN)
    usage = Usage(input_tokens=fed, output_tokens=most or 0)
    found = (price.at_most(model, one) for one in (usage, replace(usage, cache_write_tokens=fed)))
    return max((one.cost for one in found if one is not None), default=None)


class _Look(Struct, frozen=True):
    """The batches in flight that a budget counts, and the newest ledger line before these batches were read."""

    newest: int
    flying: Sequence[Shard]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(shard.id for shard in self.flying)


class _Summed(Struct, frozen=True):
    """Dollars booked in the period that begins at `starts`.

    `old` is the sum up to `until`. `all` is the whole sum when last added up. It is valid while no ledger line is
    newer and the same batches are in flight. A batch that began, was booked and ended in between has newer lines.
    """

    starts: datetime
    until: datetime
    old: Decimal = Decimal(0)
    all: Decimal = Decimal(0)
    look: tuple[int, frozenset[str]] | None = None


class SharedBudgets:
    """The budgets of orch.toml, which count the jobs of every home in the database.

    Each intent is checked before and after its commit, so two processes never pass together: the later second check
    sees both intents. Both processes may then withdraw and try again.
    """

    def __init__(self, store: Store, config: Config, now: Callable[[], datetime]) -> None:
        self._store = store
        self._config = config
        self._backends = dict(config.backends)
        self._now = now
        # Keyed by the whole budget: after a change of orch.toml, another budget may have the same name.
        self._summed: dict[Budget, _Summed] = {}

    def use(self, config: Config) -> None:
        """Use these settings from now on. Backends that left orch.toml are kept, as they may still have batches."""
        self._config = config
        self._backends |= config.backends

    def no_room(self, job: Job, shard: Shard) -> str | None:
        """Return why a shard must wait, or None if it may be sent. Its intent may already be committed.

        Raises TooDear if the shard can never fit, RefusedError if its cost cannot be known.
        """
        for budget in self._of(job):
            look = self._look(budget)
            others = [other for other in look.flying if other.id != shard.id]
            wanted = bound(self._price(shard), self._model(job, shard), shard.tokens, shard.max_output)
            if wanted is None:
                why = self._no_time(self._standing(budget, look, others), _running(others), shard)
            elif shard.max_output is None:
                raise RefusedError(
                    f"job {job.id} counts against budget {budget.name}, and has rows with unlimited answers",
                    hint=_NO_BOUND,
                )
            else:
                why = budgets.no_room(self._standing(budget, look, others), wanted)
            if why is not None:
                return why
        return None

    def _no_time(self, standing: BudgetStanding, there: set[str], shard: Shard) -> str | None:
        if not self._to_stop({shard.backend}):
            return None
        more = self._to_stop({*there, shard.backend}) - self._to_stop(there)
        return budgets.no_time(standing, more)

    def used_up(self, job: Job, shards: Sequence[Shard]) -> str | None:
        """Return why a job must be stopped now, or None. Only batches paid by the hour can be stopped."""
        if job.cancel_requested_at is not None or not self._to_stop(_running(shards)):
            return None
        reasons = (budgets.used_up(self._stands(budget)) for budget in self._of(job))
        return next((why for why in reasons if why is not None), None)

    def left(self, job: Job) -> Decimal | None:
        """Return the dollars that a job and its batches in flight may still cost, or None if no budget applies."""
        found = []
        for budget in self._of(job):
            look = self._look(budget)
            others = [shard for shard in look.flying if shard.job_id != job.id]
            found.append(self._standing(budget, look, others).left)
        return min(found, default=None)

    def warn(self, job: Job) -> None:
        """Record that a budget of the job is past its warning mark, once per budget and period."""
        for budget in self._of(job):
            standing = self._stands(budget)
            if (told := budgets.warning(standing)) is None:
                continue
            code, events = budgets.warning_code(standing), self._store.jobs.events(job.id)
            if not any(event.kind == EventKind.BUDGET and event.code == code for event in events):
                self._store.jobs.note(job.id, EventKind.BUDGET, told, self._now(), code=code)

    def standings(self) -> list[BudgetStanding]:
        return [self._stands(budget) for budget in self._config.budgets]

    def _of(self, job: Job) -> list[Budget]:
        if not self._config.budgets:
            return []
        return budgets.counting(self._config.budgets, self._store.jobs.tags(job.id))

    def _look(self, budget: Budget) -> _Look:
        return _Look(self._store.ledger.newest(), self._store.ledger.unpaid(budget.key_value))

    def _stands(self, budget: Budget) -> BudgetStanding:
        look = self._look(budget)
        return self._standing(budget, look, look.flying)

    def _standing(self, budget: Budget, look: _Look, flying: Sequence[Shard]) -> BudgetStanding:
        # The batches were read before the ledger: a shard that ends in between is counted twice, but never missed.
        period = budgets.period_at(budget, self._now(), self._config.reports.zone)
        spent, to_stop = self._booked(budget, period, look), self._to_stop(_running(flying))
        return self._add_up(flying, BudgetStanding(budget, period, spent, to_stop))

    def _add_up(self, flying: Sequence[Shard], standing: BudgetStanding) -> BudgetStanding:
        """Add the costs of batches in flight to a standing.

        For batches paid by the hour, the cost of the time so far counts as spent. For other batches, the highest cost
        counts as in flight.
        """
        jobs = {job_id: self._store.jobs.find(job_id) for job_id in {shard.job_id for shard in flying}}
        for shard in flying:
            job = jobs[shard.job_id]
            if shard.backend not in self._backends or job is None:
                standing = replace(standing, unbounded=f"orch.toml has no {shard.backend}, where {shard.id} is")
                continue
            try:
                price = self._price(shard)
                most = bound(price, self._model(job, shard), shard.tokens, shard.max_output)
            except (UsageError, ValueError) as error:  # no price, or a job of another version
                told = error.message if isinstance(error, UsageError) else "its job file is from another version"
                standing = replace(standing, unbounded=f"the cost of {shard.id} is unknown: {told}")
                continue
            if most is None:
                cost = price.of_time(shard.provider_seconds).cost
                standing = replace(standing, spent=standing.spent + cost, running=standing.running + cost)
            elif shard.max_output is None:
                standing = replace(standing, unbounded=f"{shard.id} is in flight, with unlimited answers")
            else:
                standing = replace(standing, in_flight=standing.in_flight + most)
        return standing

    def _booked(self, budget: Budget, period: Period, look: _Look) -> Decimal:
        """Return the sum booked in a period. Only new lines are added up, because a held batch asks at every tick."""
        known = self._summed.get(budget)
        if known is None or known.starts != period.starts:
            known = _Summed(period.starts, period.starts)
        elif known.look == (self._store.ledger.newest(), look.ids):
            return known.all
        settled = self._now() - SETTLED_AFTER
        if settled - known.until >= SETTLED_AFTER:
            old = known.old + self._store.ledger.paid(known.until, settled, budget.key_value)
            known = _Summed(period.starts, settled, old)
        every = known.old + self._store.ledger.paid(known.until, period.ends, budget.key_value)
        self._summed[budget] = replace(known, all=every, look=(look.newest, look.ids))
        return every

    def _model(self, job: Job, shard: Shard) -> str:
        return resolve_model(shard.model, shard.backend, models_of(self._config, job)) or shard.model

    def _price(self, shard: Shard) -> Prices:
        price = prices_of(self._backends[shard.backend], self._config, self._now)
        return price if shard.preflight is None else price.synchronous()

    def _to_stop(self, names: Collection[str]) -> Decimal:
        """Return the cost of backends paid by the hour, from the decision to stop them until they have stopped."""
        costs = (
            prices_of(backend, self._config, self._now).of_time(REACTION_SECONDS * backend.upstream_count).cost
            for name, backend in self._backends.items()
            if name in names and isinstance(backend, TimedBackend)
        )
        return sum(costs, Decimal(0))


def _running(shards: Iterable[Shard]) -> set[str]:
    return {shard.backend for shard in shards if shard.state in (ShardState.SUBMITTING, ShardState.SUBMITTED)}
