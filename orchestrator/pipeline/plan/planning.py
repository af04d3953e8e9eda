"""The planner's view of a job: its plan, and the orders for its open rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Self

from msgspec.structs import replace

from orchestrator.backends.open import profile_for
from orchestrator.backends.package import package_of
from orchestrator.core.errors import RefusedError, RequestRefused
from orchestrator.core.model import Forecast, Job, Usage
from orchestrator.core.money import amount, money
from orchestrator.core.shards import Shard, ShardId
from orchestrator.core.tokens import estimate
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.cache_first import CachedBackend, cache_first
from orchestrator.pipeline.plan.engine_speeds import ObservationMemory
from orchestrator.pipeline.plan.forecast_records import foreseen_by
from orchestrator.pipeline.plan.orders import First, Orders, Sending
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.pipeline.plan.route_costs import Prospects, is_assumed, seconds_of
from orchestrator.pipeline.plan.routes import Aliases, eligibility_of, models_of, objections, standing_of, why_not
from orchestrator.pipeline.plan.unproven import is_priced, is_wanted, unproven
from orchestrator.policy import planner
from orchestrator.policy.canary import KIND
from orchestrator.policy.planner import (
    BatchOption,
    Decision,
    FirstRow,
    Open,
    Option,
    Outlook,
    Plan,
    PlanVerdict,
    Probe,
    ProbeRule,
    Route,
    SynchronousOption,
    Terms,
)
from orchestrator.policy.planner.job_orders import locate_rows, returning_rows, to_reroute
from orchestrator.policy.preflight import FEW_ROWS
from orchestrator.settings.backends import HostedBackend, OwnServer, TimedBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import RungStanding, is_of
from orchestrator.settings.stored_spec import spec_of
from orchestrator.store import Store
from orchestrator.store.records import OpenRows


def first_rows(
    store: Store, config: Config, job: Job, routes: Sequence[Route], now: datetime, only: Aliases | None = None
) -> Iterator[FirstRow]:
    """Yield the rows to send before the batches of these routes, each with its maximum cost."""
    for route in routes if is_wanted(job) else ():
        backend = config.backends[route.backend]
        if route.rows <= FEW_ROWS or not isinstance(backend, HostedBackend):
            continue
        if not (backend.preflight and profile_for(backend).asks_directly):
            continue
        prices = prices_of(backend, config, lambda: now)
        home, models = Home(config.home), models_of(config, job)
        known = set[int]()
        for one in unproven(store, home, job, route.backend, recipient_of(backend), models, now, only=only):
            if not is_priced(prices, one):
                continue
            row = one.row
            known.add(row.seq)
            usage = Usage(input_tokens=estimate(row.span.length), output_tokens=row.max_output or 0)
            most = None if row.max_output is None else prices.synchronous().at_most(one.model, usage)
            yield FirstRow(route.backend, one.model, None if most is None else most.cost)
        if (rules := package_of(backend).prompt_cache()) is not None:
            cached = CachedBackend(route.backend, recipient_of(backend), prices, rules)
            for first in cache_first(store, home, job, cached, models, now, only=only):
                if first.row.row.seq not in known:
                    yield FirstRow(route.backend, first.row.model, first.at_most, first.saves)


def with_first_rows(plan: Plan, rows: tuple[FirstRow, ...]) -> Plan:
    """Add the rows that are sent first to a plan. The plan already contains their cost at a batch's half price."""
    more = sum((one.at_most for one in rows if one.at_most is not None), Decimal(0))
    return replace(plan, first_rows=rows, expected=plan.expected + more / 2, at_most=plan.at_most + more)


NO_DEADLINE, NO_TARGET = timedelta(days=7), 0.5
"""Deadline and target chance used for a job without a deadline."""
LOOK = timedelta(minutes=30)
QUICK = 2.0
"""Minimum seconds between submitting a batch and the poll that finds it finished."""


class Planning:
    """The planner's view of a job at one moment. Reads the store and never changes it."""

    def __init__(
        self,
        store: Store,
        config: Config,
        job: Job,
        now: datetime,
        left: Callable[[Job], Decimal | None] = lambda job: None,
        *,
        canary: bool = False,
        down: Mapping[str, float] | None = None,
        memory: ObservationMemory | None = None,
        only: Aliases | None = None,
        reserved: Decimal = Decimal(0),
    ) -> None:
        """`left` returns what shared budgets leave for a job; None means that no shared budget applies.

        With `canary`, only canary rows count; with `only`, only rows of these aliases. `down` maps each backend
        without a working upstream to the seconds since the last upstream failed. `memory` caches the speeds of
        earlier nights. `reserved` is the part of the budget that other rows of the job need.
        """
        self._only = only
        self._reserved = reserved
        self._store = store
        self._config = config
        self._job = job
        self._now = now
        self._left = left
        self._canary = canary
        self._down = down or {}
        self._memory = memory or ObservationMemory()

    @property
    def only(self) -> Aliases | None:
        """Aliases whose rows this view covers; None means all."""
        return self._only

    @cached_property
    def work(self) -> list[OpenRows]:
        """The job's open rows, grouped by the properties that decide their cost and backend."""
        found = self._store.sizes.open_work(self._job.id, canary=self._canary)
        return [part for part in found if is_of(part.model, self._only)]

    @cached_property
    def shards(self) -> list[Shard]:
        return [one for one in self._store.shards.of_job(self._job.id) if is_of(one.model, self._only)]

    def with_work(self, work: list[OpenRows]) -> Self:
        """Return a copy of this view for other rows."""
        other = self._like(canary=self._canary)
        other.work = [part for part in work if is_of(part.model, self._only)]
        return other

    def part_of(self, shard: Shard) -> Planning:
        """Return the view that contains a shard's rows: this one, or a lot of `MixedPlanning`."""
        return self

    @cached_property
    def _prospects(self) -> Prospects:
        return Prospects(
            self._store, self._config, self._job, self.work, self._now, self._down, self._memory, self._only
        )

    @property
    def options(self) -> list[Option]:
        """All backends of orch.toml, each with an objection if it cannot take the job."""
        return self._prospects.options

    def option(self, backend: str) -> Option:
        return next(one for one in self.options if one.backend == backend)

    @cached_property
    def _usable(self) -> list[Option]:
        return [option for option in self.options if option.objection is None]

    @cached_property
    def terms(self) -> Terms:
        """The job's terms, with the unspent part of its budget."""
        job, budget = self._job, None
        if job.budget is not None:
            budget = max(Decimal(0), job.budget - self._store.ledger.spent(job.id) - self._reserved)
        terms = Terms(deadline=self._now + NO_DEADLINE, budget=budget, target=NO_TARGET)
        if job.deadline_at is not None:
            terms = Terms(deadline=job.deadline_at, budget=budget, margin=self._prospects.margin)
        if (spec := spec_of(job)) is None:
            return terms
        terms = replace(terms, local_only=spec.allow.location == "local")
        if job.deadline_at is None:
            return terms
        return replace(terms, target=spec.target, late_cost=spec.late_cost)

    @property
    def _binding(self) -> Terms:
        """The job's terms, with its budget limited by what shared budgets leave.

        If every usable backend is paid by the hour, the budget does not limit the plan. Instead, orch stops the
        running job when the budget is used up.
        """
        usable = [self._config.backends[one.backend] for one in self._usable]
        if usable and all(isinstance(one, TimedBackend) for one in usable):
            return replace(self.terms, budget=None)
        shared = self._left(self._job)
        shared = None if shared is None else max(Decimal(0), shared - self._reserved)
        left = [one for one in (self.terms.budget, shared) if one is not None]
        return replace(self.terms, budget=min(left, default=None))

    # --- as if nothing had been sent

    def plan(self) -> Plan:
        """Plan all open rows as if no row had been sent, under the orders' terms. Submissions print this plan."""
        found = self._prospects
        planned, terms = self._planned(found.rows, self.options, self._binding), self._binding
        if self._usable and terms.budget != self.terms.budget and not planned.verdict.holds:
            alone = self._planned(found.rows, self.options, self.terms)
            if alone.verdict.holds or alone.chance > planned.chance:
                told = f"{planned.verdict.reason}; shared budgets leave too little now"
                planned = replace(planned, verdict=replace(planned.verdict, reason=told, budget=None))
        own = self.terms.budget
        if terms.budget is None and own is not None and planned.verdict.holds and planned.at_most > own:
            told = f"costs up to {money(planned.at_most)}; the job stops at its budget of {amount(own)}"
            planned = replace(planned, verdict=PlanVerdict(False, told, budget=planned.at_most))
        waiting = Open(found.rows, later=found.later, claims=found.claims, later_cost=found.later_cost)
        probe = self._probed(waiting, terms)
        first = first_rows(self._store, self._config, self._job, planned.routes, self._now, self._only)
        planned = with_first_rows(replace(planned, probe=probe[0] if probe else None), tuple(first))
        return planned if self._only else planner.covering(planned, found.dearest, found.rows, self.options, terms)

    def _planned(self, rows: int, options: Sequence[Option], terms: Terms) -> Plan:
        found = self._prospects
        return planner.plan(
            rows, options, terms, self._now, later=found.later, claims=found.claims, later_cost=found.later_cost
        )

    def is_refused(self, plan: Plan) -> bool:
        """True if known facts show that a plan cannot keep the deadline or the budget.

        An assumption never refuses a job, because running the job shows the facts. Prices are facts. The speed of our
        own upstreams is an assumption until it has been measured.
        """
        if not self._usable and self._prospects.unbounded:
            return True
        if plan.verdict.holds or (self._job.deadline_at is None and self.terms.budget is None):
            return False
        if self._binding.budget != self.terms.budget:
            # Shared budgets refuse nothing: they hold batches until the budgets renew.
            plan = self._planned(self._prospects.rows, self.options, self.terms)
            if plan.verdict.holds:
                return False
        timed = [one for one in self._usable if isinstance(self._config.backends[one.backend], TimedBackend)]
        if self.terms.budget is not None and not any(is_assumed(one) for one in timed):
            free = self._planned(self._prospects.rows, self.options, replace(self.terms, budget=None))
            if free.verdict.holds or not plan.routes:
                return True
        return not any(is_assumed(one) for one in self._usable)

    def forecasts(self, plan: Plan) -> list[Forecast]:
        """Return the forecasts of a plan, which are later compared with the outcomes."""
        found = self._prospects
        lengths = {part.task: (part.model, found.lengths(part)) for part in self.work}
        return foreseen_by(self._job, plan, lengths, found.rows, self._now)

    # --- as the rows are now

    def outlook(self) -> Outlook | None:
        """Return the job's outlook, or None if some of its rows have no backend."""
        if not self._usable or self._is_stuck:
            return None
        found = self._decision()
        return Outlook(found.chance, found.expected, found.reroute, found.reason, found.waits)

    @property
    def _is_stuck(self) -> bool:
        usable = {one.backend for one in self._usable}
        return any(usable <= {*avoid} for avoid in self._refused_by)

    @property
    def gives_up_at(self) -> datetime | None:
        """Time at which orch stops waiting for cancelled batches and asks their rows elsewhere, or None."""
        return self._decision().gives_up_at if self._usable and self._job.deadline_at is not None else None

    def orders(self) -> Orders:
        """Return the current orders. Raises RefusedError or RequestRefused if no backend takes the remaining rows."""
        kept, stuck = list[Sending](), None
        for avoid in self._refused_by:
            try:
                kept += self._sendings_of(avoid)
            except (RefusedError, RequestRefused) as error:
                stuck = stuck or error
        found = self._orders(kept)
        if stuck is None or found.sends or found.reroutes or any(not one.state.is_final for one in self.shards):
            return replace(found, sends=self._limited(found.sends))
        raise stuck

    def _limited(self, sends: Sequence[Sending]) -> tuple[Sending, ...]:
        return tuple(replace(one, only=self._only) for one in sends)

    def _orders(self, kept: list[Sending]) -> Orders:
        if not self._usable:
            if self.open_rows.waiting:
                raise RefusedError(f"job {self._job.id} cannot continue: {self._why_not()}")
            return Orders((), tuple(kept), "nothing waits", self._now + LOOK)
        if len(self._usable) == 1 and not self._has_to_leave and not self._has_price_changes:
            # With one usable backend, nothing is to be decided: quotas, budgets and the deadline hold rows back as
            # needed.
            only, free = self._usable[0].backend, self.open_rows.waiting
            reason = eligibility_of(self._config, self._job, only=self._only).reason(only)
            order = [Sending(free, only, (), reason)] if free else []
            back = [Sending(self._waiting(avoid), only, avoid, reason) for avoid in self._rerouted]
            return Orders((), (*kept, *back, *order), reason, self._now + LOOK)
        probe, found = self._probed(self.open_rows, self._binding) or (None, self._decision())
        sends = self._sends(found, probe)
        reroutes = to_reroute(found, self.shards)
        return Orders(reroutes, (*kept, *sends), found.reason, found.next_look, found.gives_up_at)

    @property
    def _has_price_changes(self) -> bool:
        return any(isinstance(one, SynchronousOption) and one.cost_steps for one in self._usable)

    @property
    def _has_to_leave(self) -> bool:
        usable = {option.backend for option in self._usable}
        return any(backend not in usable for backend, _ in self.open_rows.synchronous)

    def _probed(self, rows: Open, terms: Terms) -> tuple[Probe | None, Decision] | None:
        routing = self._config.routing
        if self._job.deadline_at is None:
            return None
        rule = ProbeRule(routing.probe_after, routing.probe_share) if routing.probe else None
        return planner.choose_probe(rows, self.options, terms, self._now, rule, self._prospects.last_used)

    def _sends(self, found: Decision, probe: Probe | None) -> list[Sending]:
        """Turn a decision's sends into orders. Rerouted rows never go to a backend that they avoid.

        If the budget does not cover the forecast of all rows, or a quota has no room, the decision has no sends. The
        rows then go to the cheapest backend, as far as budget and quota allow.
        """
        reason = self._reason(found.reason)
        waiting = {avoid: self._waiting(avoid) for avoid in ((), *self._rerouted)}
        sends = []
        for send in found.sends:
            left = send.rows if send.source is None else 0
            # A batch gets rerouted rows last: the planner may have chosen a backend that these rows avoid.
            for avoid in sorted(waiting, key=bool, reverse=self._is_paced(send.backend)):
                if send.backend not in avoid and (taken := min(left, waiting[avoid])):
                    is_probe = probe is not None and send.backend == probe.backend and not avoid
                    why = probe.reason if probe and is_probe else reason
                    sends.append(Sending(taken, send.backend, avoid, why, probe=is_probe))
                    waiting[avoid], left = waiting[avoid] - taken, left - taken
        free = waiting.pop(())
        for avoid, rows in waiting.items():
            if rows:
                sends.append(Sending(rows, self._sync_options_for(avoid)[0].backend, avoid, reason))
        if free and not found.sends and not found.waits:
            cheapest = min(self._usable, key=lambda one: one.cost.p50).backend
            sends.append(Sending(free, cheapest, (), f"the cheapest; {found.reason}"))
        return sends

    def of_canary(self) -> Planning:
        """Return a copy of this view, limited to canary rows."""
        return self._like(canary=True)

    def _like(self, *, canary: bool) -> Self:
        return type(self)(
            self._store, self._config, self._job, self._now, self._left, canary=canary, down=self._down,
            memory=self._memory, only=self._only, reserved=self._reserved,
        )  # fmt: skip

    def first(self, by: datetime | None) -> First | str:
        """Return the orders for canary rows, or the reason why the canary would not end by `by`.

        The rows go to the fastest backend. A synchronous backend is preferred to any batch.
        """
        if not self._usable:
            return First(self.orders(), ())
        rows = max(1, self.open_rows.waiting)
        handles = [one for one in self._usable if isinstance(one, SynchronousOption)]
        best = min(handles or self._usable, key=lambda one: (seconds_of(one, rows, 0.95), one.cost.p50))
        back = self._now + timedelta(seconds=seconds_of(best, rows, 0.95))
        if by is not None and back > by and self.open_rows.waiting:
            return f"{best.backend} may take until {back:%H:%M} UTC for them, and the others need the time"
        reason = f"the canary goes first; {best.backend} is the fastest"
        sends = [order for avoid in self._refused_by for order in self._sendings_of(avoid)]
        if self.open_rows.waiting:
            sends.append(Sending(self.open_rows.waiting, best.backend, (), reason))
        foreseen: tuple[Forecast, ...] = ()
        # No forecast if rows were sent before, or if the backend is paid by the hour: few rows cost more each.
        if not self.shards and not isinstance(self._config.backends[best.backend], TimedBackend):
            p50, p95 = (float(cost * rows) for cost in (best.cost.p50, best.cost.p95))
            foreseen = (Forecast(self._job.id, KIND, best.backend, "", self._now, p50, p95, "plan"),)
        look = self._now + LOOK if by is None else min(by, self._now + LOOK)
        sends = [replace(one, canary=True) for one in sends]
        return First(Orders((), self._limited(sends), reason, look), foreseen)

    def _decision(self) -> Decision:
        return planner.replan(self.open_rows, self.options, self._binding, self._now)

    @cached_property
    def _rerouted_from(self) -> set[str]:
        """Hosted backends whose batches were rerouted. The remaining rows get no other batch there."""
        freed = (one for one in self.shards if one.rerouted_at)
        return {one.backend for one in freed if not self._is_paced(one.backend)}

    def _is_paced(self, backend: str) -> bool:
        return isinstance(self._config.backends.get(backend), OwnServer)

    @cached_property
    def _avoided(self) -> list[tuple[str, ...]]:
        return sorted({work.avoid for work in self.work if work.shard_id is None and work.avoid})

    @cached_property
    def _rerouted(self) -> list[tuple[str, ...]]:
        """Members of `_avoided` whose rows were rerouted and can go to a synchronous backend."""
        rerouted = [avoid for avoid in self._avoided if not self._rerouted_from.isdisjoint(avoid)]
        return [avoid for avoid in rerouted if self._sync_options_for(avoid)]

    @property
    def _refused_by(self) -> list[tuple[str, ...]]:
        """Sets of `_avoided` whose backends refused the rows."""
        return [avoid for avoid in self._avoided if avoid not in self._rerouted]

    def _sync_options_for(self, avoid: tuple[str, ...]) -> list[SynchronousOption]:
        handles = [one for one in self._usable if isinstance(one, SynchronousOption) and one.backend not in avoid]
        return sorted(handles, key=lambda one: one.cost.p50)

    def _may_move(self, work: OpenRows, shard: Shard) -> bool:
        return not work.avoid or any(one.backend != shard.backend for one in self._sync_options_for(work.avoid))

    def _waiting(self, avoid: tuple[str, ...]) -> int:
        return sum(work.rows for work in self.work if work.shard_id is None and work.avoid == avoid)

    @cached_property
    def open_rows(self) -> Open:
        """The job's open rows by location, without rows refused by a backend."""
        rerouted = sum(self._waiting(avoid) for avoid in self._rerouted)
        shards, by_shard = {shard.id: shard for shard in self.shards}, dict[str, int]()
        for work in self.work:
            if work.shard_id is not None and self._may_move(work, shards[ShardId(work.shard_id)]):
                by_shard[work.shard_id] = by_shard.get(work.shard_id, 0) + work.rows
        # Batches at a backend that was removed from orch.toml can be neither polled nor rerouted.
        there = [shard for shard in self.shards if shard.backend in self._config.backends]
        synchronous = {name for name in self._config.backends if self._is_paced(name)}
        found = self._prospects
        return locate_rows(
            there, by_shard, synchronous, found.cancels, self._now,
            waiting=self._waiting(()), rerouted=rerouted, later=found.later, claims=found.claims,
            later_cost=found.later_cost,
        )  # fmt: skip

    def _reason(self, why: str) -> str:
        if self._job.deadline_at is not None:
            return why
        return f"the cheapest of {', '.join(option.backend for option in self._usable)}"

    def _sendings_of(self, avoid: tuple[str, ...]) -> list[Sending]:
        """Return orders for rows refused by the backends in `avoid`.

        Raises RefusedError or RequestRefused if no other backend can take them.
        """
        refused = "it refused these rows, has no model for them, or gave them up"
        options = [
            replace(one, objection=one.objection or refused) if one.backend in avoid else one for one in self.options
        ]
        others, rows = [one for one in options if one.objection is None], self._waiting(avoid)
        if not others:
            raise why_not(self._store, self._config, self._job, avoid, options)
        plan = planner.plan(rows, options, self._binding, self._now, claims=self._prospects.claims)
        if not plan.routes:
            # Neither a budget nor a quota refuses a running job's rows: they continue as far as both allow.
            cheapest = min(others, key=lambda one: one.cost.p50).backend
            return [Sending(rows, cheapest, avoid, f"the cheapest; {plan.verdict.reason}")]
        return [Sending(route.rows, route.backend, avoid, route.reason) for route in plan.routes]

    def has_other_than(self, *backends: str) -> bool:
        """True if another backend may take rows given up by these backends."""
        against = objections(self._config, self._job, only=self._only)
        return any(name not in backends and name not in against for name in self._config.backends)

    def may_take(self, shard: Shard) -> bool:
        """True if a shard may still go to its backend. orch.toml may have changed since the plan."""
        backend = self._config.backends.get(shard.backend)
        is_local_only = (spec := spec_of(self._job)) is not None and spec.allow.location == "local"
        return backend is not None and (not is_local_only or backend.location == "local")

    def standing(self, shard: Shard) -> RungStanding:
        """Return the position of a shard's model in its alias's list of models."""
        return standing_of(self._config, self._job, shard)

    def _why_not(self) -> str:
        told = "; ".join(f"{option.backend}: {option.objection}" for option in self.options)
        return told or "no backend is configured"


def turnarounds(planning: Planning, shards: Sequence[Shard], now: datetime) -> list[Forecast]:
    """Return the forecast duration of each shard.

    A synchronous option works on all of its rows at once, including rerouted rows.
    """
    job = planning.open_rows
    together: dict[str, int] = dict(job.synchronous)
    for shard in shards:
        together[shard.backend] = together.get(shard.backend, 0) + shard.rows
    back = returning_rows(job, planning.options, planning.terms, now)
    found = []
    for shard in shards:
        option, rows = planning.option(shard.backend), together[shard.backend]
        p50, p95 = (
            QUICK + seconds_of(option, rows, chance, back.get(shard.backend, 0), job, now) for chance in (0.5, 0.95)
        )
        source = option.turnaround.source if isinstance(option, BatchOption) else option.pace.source
        found.append(
            Forecast(shard.job_id, "turnaround", shard.backend, shard.model, now, p50, p95, source, shard_id=shard.id)
        )
    return found
