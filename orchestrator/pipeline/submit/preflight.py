"""Preflight before a batch: one real row of each set of fields that its model there has never answered.

It is a shard of one row with an intent of its own, asked at the provider's synchronous endpoint. Its answer is the
row's. Batches of the same model wait for it. A refusal of a field, a schema or the model holds them back; any other
result lets them go.
"""

from __future__ import annotations

from msgspec import Struct

from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.core.tokens import estimate
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.plan.unproven import is_priced, is_wanted, unproven
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.policy.preflight import FEW_ROWS
from orchestrator.policy.sharding import Range


class Standing(Struct, frozen=True):
    """Effect of preflight rows on a batch.

    `waits_for` says what it waits for, None if it may go. `outdated` batches are planned again, so that a row that
    came back without an answer can join them.
    """

    waits_for: str | None = None
    outdated: tuple[Shard, ...] = ()


class Preflights:
    """The preflight rows of a home's jobs."""

    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._joined: set[ShardId] = set()

    def plan(self, job: Job, handle: BackendHandle, order: Sending) -> list[Shard]:
        """Give each preflight row a shard of its own; return the new shards."""
        if not handle.preflight or order.rows <= FEW_ROWS or not is_wanted(job):
            return []
        store, now = self._work.store, self._work.now()
        models, asked = self._work.backends.models(job), self._asked(job, handle)
        found = unproven(
            store, self._work.home, job, handle.name, handle.recipient, models, now, order.avoid, canary=order.canary
        )
        number, added = store.shards.next_number(job.id), list[Shard]()
        for one in found:
            row = one.row
            if (row.endpoint, row.model, one.fields) in asked or not is_priced(handle.price, one):
                continue
            shard = Shard(
                id=ShardId(f"{job.id}.{number:03d}"),
                job_id=job.id,
                number=number,
                backend=handle.name,
                endpoint=row.endpoint,
                model=row.model,
                state=ShardState.PENDING,
                reason=f"asked first: {one.model} has not answered such requests at {handle.name} before",
                rows=1,
                bytes=row.span.length + 1,
                tokens=estimate(row.span.length),
                max_output=row.max_output,
                created_at=now,
                preflight=one.fields,
            )
            of_row = Range(row.endpoint, row.model, row.seq, row.seq, 1, shard.bytes)
            store.shards.add(shard, of_row, order.avoid, canary=order.canary)
            added.append(shard)
            number += 1
        return added

    def _asked(self, job: Job, handle: BackendHandle) -> set[tuple[str, str, str]]:
        """Return what was asked for the job already and not refused: asking again would show nothing new."""
        return {
            (one.endpoint, one.model, one.preflight)
            for one in self._work.store.shards.of_job(job.id)
            if one.preflight is not None
            and one.backend == handle.name
            and one.state is ShardState.COLLECTED
            and one.refusal_code is None
        }

    def standing(self, shard: Shard) -> Standing:
        """Return what the preflight rows mean for a batch of their model."""
        alike = self._alike(shard)
        asked = [one for one in alike if one.preflight is not None]
        if not asked:
            return Standing()
        under_way = next((one for one in asked if not one.state.is_final), None)
        if under_way is not None:
            return Standing(f"waits for {under_way.id}, a row that is asked first")
        newest = {one.preflight: one for one in asked if one.state is ShardState.COLLECTED}
        unclear = [one for one in newest.values() if not one.provider_completed and one.refusal_code is None]
        back = [one for one in unclear if one.id not in self._joined]
        self._joined.update(one.id for one in back)
        last = max((one.collected_at for one in back if one.collected_at is not None), default=None)
        batches = [one for one in alike if one.preflight is None and one.state is ShardState.PENDING]
        return Standing(outdated=tuple(one for one in batches if last is not None and one.created_at <= last))

    def _alike(self, shard: Shard) -> list[Shard]:
        return [
            one
            for one in self._work.store.shards.of_job(shard.job_id)
            if (one.backend, one.endpoint, one.model) == (shard.backend, shard.endpoint, shard.model)
        ]
