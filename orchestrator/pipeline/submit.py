"""Stages 2 and 3: waiting rows become shards, and shards become batches, each paid for once.

The intent to create a batch is committed before the request for it is sent, and the batch carries the shard's id.
So whatever happens in between, the next start finds the batch by that id, or knows that there is none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from orchestrator.backends import Backend
from orchestrator.errors import InputError, JobFilesError
from orchestrator.home import Home
from orchestrator.model import Job, Shard, ShardId, ShardState
from orchestrator.requests import resolve_model, with_model
from orchestrator.sharding import pack
from orchestrator.store import Store

SHARD_KEY = "orch_shard"
DAY = 86_400
MODEL_SLACK = 200


def plan_shards(
    store: Store, job: Job, *, backend: str, reason: str, max_rows: int, max_bytes: int, now: datetime
) -> list[Shard]:
    """Give every waiting row of a job a shard; the shards that are new."""
    number = store.shards.next_number(job.id)
    _, why = _window(job, now)
    added = []
    for rows in list(pack(store.rows.waiting(job.id), max_rows=max_rows, max_bytes=max_bytes, slack=MODEL_SLACK)):
        shard = Shard(
            id=ShardId(f"{job.id}.{number:03d}"),
            job_id=job.id,
            number=number,
            backend=backend,
            endpoint=rows.endpoint,
            model=rows.model,
            state=ShardState.PENDING,
            reason=f"{reason}; {why}" if why else reason,
            rows=rows.rows,
            bytes=rows.bytes,
            created_at=now,
        )
        store.shards.add(shard, rows)
        added.append(shard)
        number += 1
    return added


def _window(job: Job, now: datetime) -> tuple[int, str]:
    """The completion window of a batch made now: until the deadline, or a day where there is none any more."""
    if job.deadline_at is None:
        return DAY, ""
    left = math.ceil((job.deadline_at - now).total_seconds())
    return (left, "") if left > 0 else (DAY, "the deadline has passed, finishing late")


def submit(
    store: Store, home: Home, job: Job, shard: Shard, backend: Backend,
    models: Mapping[str, str | dict[str, str]], now: Callable[[], datetime],
) -> None:  # fmt: skip
    """Create the batch of a pending shard; its window ends at the job's deadline as it is now.

    Raises BackendError; the shard then tells what is known.
    """
    store.shards.move(shard, ShardState.SUBMITTING)
    window, _ = _window(job, now())
    shard = replace(store.shards.get(shard.id), window_seconds=window)
    _send(store, home, shard, backend, models, now)


def recover(store: Store, shard: Shard, backend: Backend, now: datetime) -> str:
    """A shard found between intent and fact: its batch is adopted, or it is pending again. Says which, and why."""
    found = backend.find({SHARD_KEY: shard.id})
    if found is None:
        store.shards.move(shard, ShardState.PENDING)
        return "no batch carries this shard's id: it is submitted again"
    store.shards.move(shard, ShardState.SUBMITTED, batch_id=found.id, provider_status=found.status, submitted_at=now)
    return f"batch {found.id} carries this shard's id: adopted"


def _send(
    store: Store, home: Home, shard: Shard, backend: Backend, models: Mapping[str, str | dict[str, str]],
    now: Callable[[], datetime],
) -> None:  # fmt: skip
    file_id = shard.input_file_id
    path = home.shard_input(shard.id)
    if file_id is None:
        _write_input(store, home, shard, path, resolve_model(shard.model, shard.backend, models))
        file_id = backend.upload(path, f"{shard.id}.jsonl")
        store.shards.note(shard, input_file_id=file_id)
    batch = backend.create(file_id, shard.endpoint, shard.window_seconds, {SHARD_KEY: shard.id})
    store.shards.move(
        shard, ShardState.SUBMITTED, batch_id=batch.id, provider_status=batch.status, submitted_at=now()
    )
    path.unlink(missing_ok=True)


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
