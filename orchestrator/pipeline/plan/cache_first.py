"""Rows sent before a batch to write the prompt cache that the batch reads, with their costs and savings."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from msgspec import Struct

from orchestrator.core import tokens
from orchestrator.core.errors import UsageError
from orchestrator.core.model import Job, Usage
from orchestrator.core.shards import Shard, ShardState
from orchestrator.core.tokens import estimate
from orchestrator.pipeline.backend_handles import Models, Prices
from orchestrator.pipeline.plan.unproven import RowKinds, Unproven, is_wanted
from orchestrator.policy import overdue
from orchestrator.policy.dialect import Recipient
from orchestrator.policy.preflight import FEW_ROWS
from orchestrator.policy.prompt_cache import (
    SPARE,
    CacheLife,
    CacheMark,
    CacheRules,
    PrefixCosts,
    SharedPrefix,
    cache_of,
    preflight_of,
    shared_prefix,
)
from orchestrator.settings.home import Home
from orchestrator.settings.model_lists import is_of
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.store import Store

REMEMBERED = timedelta(days=30)
"""How far back a model's cache use counts. If less was read than written, the model gets no cache-writing row."""


class CacheFirst(Struct, frozen=True):
    """A row that writes the cache of its task, with its maximum cost and the batches' savings."""

    row: Unproven
    life: CacheLife
    at_most: Decimal
    saves: Decimal

    @property
    def preflight(self) -> str:
        return preflight_of(self.life.name, self.row.row.task, self.row.fields)


class CachedBackend(Struct, frozen=True):
    name: str
    recipient: Recipient
    prices: Prices
    rules: CacheRules


def cache_first(
    store: Store,
    home: Home,
    job: Job,
    backend: CachedBackend,
    models: Models,
    now: datetime,
    avoid: tuple[str, ...] = (),
    *,
    canary: bool = False,
    only: Collection[str] | None = None,
) -> Iterator[CacheFirst]:
    """Yield the smallest waiting row of each task whose waiting rows would be cheaper with a cache.

    Nothing is yielded until measured batches of this backend end within half of the cache's life. A model is skipped
    if its recent batches read less from the cache than they wrote.
    """
    usual = overdue.usual_of(store.shards.durations(backend.name))
    life = backend.rules.life(usual.total_p90) if usual.is_known else None
    if life is None or not is_wanted(job):
        return
    if job.deadline_at is not None and job.deadline_at < now + timedelta(seconds=life.seconds):
        return
    prefixes = {task.id: shared_prefix(task) for task in tasks_of(job)}
    kinds = RowKinds(store, home, job, backend.name, backend.recipient, models, now)
    waiting = store.proofs.smallest_waiting(job.id, avoid, canary=canary)
    for one in kinds.of(row for row in waiting if row.rows > FEW_ROWS and is_of(row.model, only)):
        prefix = prefixes.get(one.row.task)
        size = 0 if prefix is None else tokens.count_plain(prefix.texts)
        if size < backend.rules.least(one.model):
            continue
        read, written = store.proofs.cache_use(backend.name, one.model, now - REMEMBERED)
        if read < written:
            continue
        try:
            costs, at_most = _costs(backend.prices, one, size, life)
        except UsageError:
            continue  # a price is unknown
        if at_most is not None and (saves := costs.saving(one.row.rows)) > 0:
            yield CacheFirst(one, life, at_most, saves)


def _costs(prices: Prices, one: Unproven, size: int, life: CacheLife) -> tuple[PrefixCosts, Decimal | None]:
    lasting = size if life.seconds > 300 else 0
    written = Usage(input_tokens=size, cache_write_tokens=size, cache_write_1h_tokens=lasting)
    left = Usage(max(0, estimate(one.row.span.length) - size), output_tokens=one.row.max_output or 0)
    usages = (Usage(input_tokens=size), Usage(input_tokens=size, cached_tokens=size), written, left)
    now = prices.synchronous()
    batch = [prices.at_most(one.model, usage) for usage in usages]
    alone = [now.at_most(one.model, usage) for usage in (written, left)]
    known = [price.cost for price in (*batch, *alone) if price is not None]
    if len(known) < len(batch) + len(alone) or one.row.max_output is None:
        return PrefixCosts(*[Decimal(0)] * 4), None
    plain, read, write, rest, first, first_rest = known
    return PrefixCosts(plain, read, write, first + first_rest - plain - rest), first + first_rest


def marks_of(store: Store, job: Job, shard: Shard, rules: CacheRules, now: datetime) -> tuple[CacheMark, ...]:
    """Return a batch's marks: one for each task whose cache was written recently."""
    marks, fresh = [], {life.name: timedelta(seconds=life.seconds - life.seconds / SPARE) for life in rules.lives}
    for one in store.shards.of_job(job.id):
        if (mark := _mark(job, one)) is None or one.state is not ShardState.COLLECTED or not one.provider_completed:
            continue
        of_model = (one.backend, one.endpoint, one.model) == (shard.backend, shard.endpoint, shard.model)
        if of_model and one.ended_at is not None and now < one.ended_at + fresh.get(mark.life, timedelta()):
            marks.append(mark)
    return tuple(marks)


def mark_of(job: Job, shard: Shard) -> list[CacheMark]:
    """Return the mark of a shard that writes a cache; empty for any other shard."""
    mark = _mark(job, shard)
    return [] if mark is None else [mark]


def _mark(job: Job, shard: Shard) -> CacheMark | None:
    if (found := cache_of(shard.preflight)) is None:
        return None
    life, name = found
    prefix: SharedPrefix | None = next((shared_prefix(task) for task in tasks_of(job) if task.id == name), None)
    return None if prefix is None else CacheMark(name, prefix, life)
