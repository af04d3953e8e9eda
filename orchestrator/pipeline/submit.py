"""Stages 2 and 3: waiting rows become shards, and shards become batches, each paid for once.

The intent to create a batch is committed before the request for it is sent, and the batch carries the shard's id
where its provider has room for one. So whatever happens in between, the batch is found again, or it is known that
there is none: for as long as one may still turn up, nothing is sent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby, islice
from pathlib import Path

from orchestrator.backends import Intent, Order, RemoteBatch
from orchestrator.backends.profiles import window_for
from orchestrator.errors import (
    AccountError,
    BackendBusy,
    BackendRefused,
    InputError,
    JobFilesError,
    NotSent,
    Uncertain,
)
from orchestrator.home import Home
from orchestrator.model import Job, Shard, ShardId, ShardState
from orchestrator.pipeline.governor import Room
from orchestrator.pipeline.lanes import Lane, Models
from orchestrator.pipeline.planning import Sending
from orchestrator.requests import resolve_model, with_model
from orchestrator.sharding import Range, Waiting, pack
from orchestrator.store import Store

DAY = 86_400
MODEL_SLACK = 200


def plan_shards(
    store: Store, job: Job, lane: Lane, order: Sending, room: Callable[[str], Room], now: datetime
) -> list[Shard]:
    """Give the waiting rows that an order is about a shard; the shards that are new.

    `room` gives what one batch of a model may hold at this backend.
    """
    number = store.shards.next_number(job.id)
    _, why = window_of(job, now)
    added = []
    waiting = store.rows.waiting(job.id, order.avoid, canary=order.canary)
    for rows in list(_ranges(islice(waiting, order.rows), lane, room)):
        again = f"; tried {rows.attempts} times before" if rows.attempts else ""
        shard = Shard(
            id=ShardId(f"{job.id}.{number:03d}"),
            job_id=job.id,
            number=number,
            backend=lane.name,
            endpoint=rows.endpoint,
            model=rows.model,
            state=ShardState.PENDING,
            reason=f"{order.reason}{again}{'; ' + why if why else ''}",
            rows=rows.rows,
            bytes=rows.bytes,
            tokens=rows.tokens,
            max_output=rows.max_output,
            created_at=now,
        )
        store.shards.add(shard, rows, order.avoid, canary=order.canary)
        added.append(shard)
        number += 1
    return added


def _ranges(waiting: Iterable[Waiting], lane: Lane, room: Callable[[str], Room]) -> Iterator[Range]:
    for model, rows in groupby(waiting, key=lambda row: row.model):
        most = room(model)
        yield from pack(
            rows,
            max_rows=most.rows,
            max_bytes=lane.limits.max_bytes,
            max_tokens=most.tokens,
            max_inputs=lane.limits.max_inputs,
            slack=MODEL_SLACK,
        )


def window_of(job: Job, now: datetime) -> tuple[int, str]:
    """How long a batch made now may take: until the deadline, or a day where there is none any more."""
    if job.deadline_at is None:
        return DAY, ""
    left = math.ceil((job.deadline_at - now).total_seconds())
    return (left, "") if left > 0 else (DAY, "the deadline has passed, finishing late")


def submit(
    store: Store, home: Home, job: Job, shard: Shard, lane: Lane, models: Models, now: Callable[[], datetime],
    over: Callable[[], str | None],
) -> RemoteBatch | str | None:  # fmt: skip
    """Create the batch of a pending shard; its window ends at the job's deadline as it is now.

    `over` is asked once the intent is known to everybody: where it says why there is no room after all, as another
    process was quicker, the shard is pending again and that is the answer.
    None where the backend refused it for good: the shard has ended then, and its rows are judged as collected ones.
    Raises BackendError; the shard then tells what is known: pending again where nothing was made, else `submitting`.
    """
    if (file_id := shard.input_file_id) is None:
        path = home.shard_input(shard.id)
        _write_input(store, home, shard, path, resolve_model(shard.model, shard.backend, models))
        try:
            file_id = lane.api.upload(path, f"{shard.id}.jsonl")
        except BackendRefused as refusal:
            if isinstance(refusal, (BackendBusy, AccountError)):
                raise
            store.shards.move(shard, ShardState.SUBMITTING, intended_at=now())
            _refused(store, store.shards.get(shard.id), refusal, now())
            return None
        store.shards.note(shard, input_file_id=file_id)
    account = lane.api.account()
    window, _ = window_of(job, now())
    # From here on a batch may exist.
    store.shards.move(
        shard,
        ShardState.SUBMITTING,
        intended_at=now(),
        account=account,
        window_seconds=window_for(lane.profile, window).seconds,
        held=None,
    )
    intended = store.shards.get(shard.id)
    if (held := over()) is not None:
        store.shards.move(intended, ShardState.PENDING)
        return held
    try:
        batch = lane.api.create(Order(shard.id, file_id, shard.endpoint, window, shard.rows))
    except (NotSent, BackendBusy, AccountError) as error:
        store.shards.move(intended, ShardState.PENDING, held=error.message)
        raise
    except JobFilesError:
        # What was uploaded lay on this machine, and is gone: it is made anew.
        store.shards.move(intended, ShardState.PENDING, input_file_id=None)
        raise
    except BackendRefused as refusal:
        _refused(store, intended, refusal, now())
        return None
    except Uncertain as error:
        store.shards.note(intended, held=error.message)
        raise
    store.shards.move(intended, ShardState.SUBMITTED, **_facts_of(batch, now()))
    if lane.is_own:
        home.shard_input(shard.id).unlink(missing_ok=True)
    return batch


def _refused(store: Store, shard: Shard, refusal: BackendRefused, now: datetime) -> None:
    code = refusal.code or f"http_{refusal.status}"
    store.shards.move(
        shard, ShardState.ENDED, provider_status="failed", refusal=f"{code}: {refusal.message}", ended_at=now
    )


def _facts_of(batch: RemoteBatch, now: datetime) -> dict[str, object]:
    return {
        "batch_id": batch.id,
        "provider_status": batch.status,
        "status_at": now,
        "submitted_at": now,
        "held": None,
    }


def recover(store: Store, home: Home, shard: Shard, lane: Lane, now: datetime) -> str | None:
    """A shard found between intent and fact: its batch is adopted, or it is pending again. Says which, and why.

    None while nobody can tell yet; what it waits for stands in `held`.
    """
    since = shard.intended_at or shard.created_at
    intent = Intent(
        shard.id,
        shard.rows,
        since,
        home.shard_input(shard.id),
        lambda batch_id: store.shards.is_known(shard.backend, batch_id),
    )
    seen = lane.api.find(intent)
    if seen.batch is not None:
        store.shards.move(shard, ShardState.SUBMITTED, **_facts_of(seen.batch, now))
        return f"batch {seen.batch.id} is this shard's: adopted"
    appears_until = since + timedelta(seconds=lane.api.appear_seconds)
    held = seen.undecided
    if held is None and now < appears_until:
        held = f"it was asked for and no answer came; by {appears_until:%H:%M} UTC it shows whether the batch exists"
    if held is not None:
        if held != shard.held:
            store.shards.note(shard, held=held)
        return None
    store.shards.move(shard, ShardState.PENDING, held=None)
    return "no batch is this shard's: it is submitted again"


def _write_input(store: Store, home: Home, shard: Shard, path: Path, model: str | None) -> None:
    """The shard's lines, in their order, with the model's name at this backend."""
    rename = model if model is not None and model != shard.model else None
    source_path = home.requests(shard.job_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with source_path.open("rb") as source, path.open("wb") as target:
            for row in store.rows.of_shard(shard.id):
                source.seek(row.span.offset)
                line = source.read(row.span.length)
                if len(line) != row.span.length:
                    raise InputError("is shorter than when it was built", file=source_path)
                target.write((with_model(line, rename) if rename else line) + b"\n")
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise JobFilesError(f"cannot write {path}: {error}", hint="make room, then run it again") from error
