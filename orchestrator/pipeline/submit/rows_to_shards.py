"""Packing of waiting rows into shards: each has as many rows of one endpoint and model as a batch may hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import groupby, islice
from types import MappingProxyType

from orchestrator.core.counts import number_of
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.backend_admission import BatchRoom
from orchestrator.pipeline.backend_handles import BackendHandle, Models
from orchestrator.pipeline.dialects import growth
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.submit.create_once import window_of
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.sharding import Range, WaitingRow, pack
from orchestrator.settings.model_lists import is_of
from orchestrator.store import Store

MODEL_SLACK = 200
"""Maximum bytes by which the backend's name for a model lengthens a line."""


def plan_shards(
    store: Store,
    job: Job,
    handle: BackendHandle,
    order: Sending,
    room: Callable[[str], BatchRoom],
    now: datetime,
    models: Models = MappingProxyType({}),
) -> list[Shard]:
    """Pack the waiting rows of an order into shards. Return the new shards.

    `room` returns the backend's room for one batch of a model. `models` has the backends' names for models.
    """

    def grows(model: str) -> int:
        name = resolve_model(model, handle.name, models) or model
        return MODEL_SLACK + growth(job, handle.recipient, name, model)

    number = store.shards.next_number(job.id)
    _, why = window_of(job, now)
    added = []
    found = store.rows.waiting(job.id, order.avoid, canary=order.canary)
    waiting = (row for row in found if is_of(row.model, order.only))
    for rows in list(_ranges(islice(waiting, order.rows), handle, room, grows)):
        again = f"; tried {number_of(rows.attempts, 'time')} before" if rows.attempts else ""
        reason = f"{order.reason}{again}{'; ' + why if why else ''}"
        shard = pending_shard(job, number, handle.name, rows, reason, now)
        store.shards.add(shard, rows, order.avoid, canary=order.canary)
        added.append(shard)
        number += 1
    return added


def pending_shard(
    job: Job, number: int, backend: str, rows: Range, reason: str, now: datetime, preflight: str | None = None
) -> Shard:
    return Shard(
        id=ShardId(f"{job.id}.{number:03d}"), job_id=job.id, number=number, backend=backend, endpoint=rows.endpoint,
        model=rows.model, state=ShardState.PENDING, reason=reason, rows=rows.rows, bytes=rows.bytes,
        tokens=rows.tokens, max_output=rows.max_output, created_at=now, preflight=preflight,
    )  # fmt: skip


def _ranges(
    waiting: Iterable[WaitingRow],
    handle: BackendHandle,
    room: Callable[[str], BatchRoom],
    grows: Callable[[str], int],
) -> Iterator[Range]:
    for model, rows in groupby(waiting, key=lambda row: row.model):
        most = room(model)
        yield from pack(
            rows,
            min_rows=handle.limits.min_rows,
            max_rows=most.rows,
            max_bytes=handle.limits.max_bytes,
            max_tokens=most.tokens,
            max_inputs=handle.limits.max_inputs,
            slack=grows(model),
            fits=most.fits,
        )
