"""Stages 2 and 3: waiting rows become shards, and shards become batches, each paid for once.

The intent to create a batch is committed before the request for it is sent, and the batch carries the shard's id
where its provider has room for one. So whatever happens in between, the batch is found again, or it is known that
there is none: for as long as one may still turn up, nothing is sent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, islice
from pathlib import Path

from orchestrator.backends import BatchOrder, Intent, RemoteBatch, Sighting
from orchestrator.backends.profiles import window_for
from orchestrator.core.errors import (
    AccountError,
    BackendBusy,
    BackendError,
    BackendRefused,
    InputError,
    JobFilesError,
    NotSent,
    StateConflict,
    Uncertain,
)
from orchestrator.core.model import Job
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle, Models
from orchestrator.pipeline.collect.settling import abandon
from orchestrator.pipeline.collect.track import PolledShard
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.submit.admission import BatchRoom
from orchestrator.policy.batch_errors import NOT_SENT, input_is_missed
from orchestrator.policy.evidence import DENIALS
from orchestrator.policy.model_names import resolve_model, with_model
from orchestrator.policy.sharding import Range, WaitingRow, pack
from orchestrator.settings.home import Home
from orchestrator.store import Store

DAY = 86_400
MODEL_SLACK = 200
UPLOAD_SETTLES = timedelta(hours=1)
"""An upload that a create does not find is waited for so long, then made again."""
MOST_UPLOADS = 2
MOST_SENDS = 8
LONGEST_APPEAR = 6 * 3600.0
UNDECIDED_FOR = timedelta(days=2)


def plan_shards(
    store: Store, job: Job, handle: BackendHandle, order: Sending, room: Callable[[str], BatchRoom], now: datetime
) -> list[Shard]:
    """Give the waiting rows that an order is about a shard; the shards that are new.

    `room` gives what one batch of a model may hold at this backend.
    """
    number = store.shards.next_number(job.id)
    _, why = window_of(job, now)
    added = []
    waiting = store.rows.waiting(job.id, order.avoid, canary=order.canary)
    for rows in list(_ranges(islice(waiting, order.rows), handle, room)):
        again = f"; tried {rows.attempts} times before" if rows.attempts else ""
        shard = Shard(
            id=ShardId(f"{job.id}.{number:03d}"),
            job_id=job.id,
            number=number,
            backend=handle.name,
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


def _ranges(
    waiting: Iterable[WaitingRow], handle: BackendHandle, room: Callable[[str], BatchRoom]
) -> Iterator[Range]:
    for model, rows in groupby(waiting, key=lambda row: row.model):
        most = room(model)
        yield from pack(
            rows,
            max_rows=most.rows,
            max_bytes=handle.limits.max_bytes,
            max_tokens=most.tokens,
            max_inputs=handle.limits.max_inputs,
            slack=MODEL_SLACK,
        )


def window_of(job: Job, now: datetime) -> tuple[int, str]:
    """How long a batch made now may take: until the deadline, or a day where there is none any more."""
    if job.deadline_at is None:
        return DAY, ""
    left = math.ceil((job.deadline_at - now).total_seconds())
    return (left, "") if left > 0 else (DAY, "the deadline has passed, finishing late")


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a shard is pending still. `is_failing` says that its backend did not do what it should have."""

    why: str
    is_failing: bool = False


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """What lets a shard through to its backend. `now` is the clock; one shard at a time holds `asks`, from
    the question to the intent.

    `first` says why it has to wait, `second` why there is no room in budgets that jobs share, once the intent is
    known to everybody: another process may have been quicker.
    """

    now: Callable[[], datetime]
    first: Callable[[], str | None]
    second: Callable[[], str | None]
    asks: AbstractContextManager[object]


def submit(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    handle: BackendHandle,
    models: Models,
    watched: PolledShard,
    admission: AdmissionCheck,
) -> RemoteBatch | Waits | None:
    """Create the batch of a pending shard; its window ends at the job's deadline as it is now.

    None where the backend refused it for good: the shard has ended then,
    and its rows are judged as collected ones. Raises BackendError; the shard then tells what is known: pending again
    where nothing was made, else `submitting`.
    """
    now = admission.now
    file_id = _uploaded(store, home, shard, handle, models, now)
    if file_id is None:
        return None
    account = handle.api.account()
    window, _ = window_of(job, now())
    with admission.asks:
        if (held := admission.first()) is not None:
            return Waits(held)
        # From here on a batch may exist.
        facts = {"intended_at": now(), "account": account, "sends": shard.sends + 1, "held": None}
        seconds = window_for(handle.profile, window).seconds
        try:
            store.shards.move(shard, ShardState.SUBMITTING, window_seconds=seconds, **facts)
        except StateConflict:
            _withdraw(store, home, shard)
            raise
    intended = store.shards.get(shard.id)
    if (held := admission.second()) is not None:
        store.shards.move(intended, ShardState.PENDING, sends=shard.sends)
        return Waits(held)
    try:
        batch = handle.api.create(BatchOrder(shard.id, file_id, shard.endpoint, window, shard.rows))
    except (NotSent, BackendBusy, AccountError) as error:
        store.shards.move(intended, ShardState.PENDING, held=error.message, sends=shard.sends)
        raise
    except JobFilesError:
        # What was uploaded lay on this machine, and is gone: it is made anew.
        store.shards.move(intended, ShardState.PENDING, input_file_id=None, sends=shard.sends)
        raise
    except BackendRefused as refusal:
        return _refused_create(store, intended, refusal, watched, now())
    except Uncertain as error:
        store.shards.note(intended, held=error.message)
        raise
    if store.shards.asked_at(shard.backend, batch.id) is not None:
        # It is one of our older files, which is given again for the same content: ours may have been made as well.
        held = f"{handle.name} answered the create with batch {batch.id}, which is another shard's"
        store.shards.note(intended, held=held)
        raise Uncertain(held)
    store.shards.move(intended, ShardState.SUBMITTED, **_facts_of(batch, now()))
    if handle.is_own:
        home.shard_input(shard.id).unlink(missing_ok=True)
    return batch


def _uploaded(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, models: Models, now: Callable[[], datetime]
) -> str | None:
    """The shard's input at its backend; None where the backend refused it for good."""
    if shard.input_file_id is not None:
        return shard.input_file_id
    path = home.shard_input(shard.id)
    _write_input(store, home, shard, path, resolve_model(shard.model, shard.backend, models))
    file_id = None
    try:
        file_id = handle.api.upload(path, f"{shard.id}.jsonl")
        store.shards.note(shard, input_file_id=file_id)
    except BackendRefused as refusal:
        if isinstance(refusal, (BackendBusy, AccountError)):
            raise
        _end_refused(store, shard, refusal.code or f"http_{refusal.status}", refusal.message, now())
        return None
    except StateConflict:
        _withdraw(store, home, shard, file_id)
        raise
    return file_id


def _withdraw(store: Store, home: Home, shard: Shard, uploaded: str | None = None) -> None:
    """Leave nothing of a shard that was given up meanwhile; what was `uploaded` is still to be recorded."""
    current = store.shards.get(shard.id)
    if current.state is not ShardState.CANCELLED:
        return
    abandon(home, current)
    if uploaded is not None:
        store.shards.note(current, input_file_id=uploaded, cleaned_at=None)


def _refused_create(
    store: Store, intended: Shard, refusal: BackendRefused, watched: PolledShard, now: datetime
) -> Waits | None:
    """A create that was refused: for good, or because its upload cannot be used yet, which passes."""
    since = watched.refused_since = watched.refused_since or now
    if not input_is_missed(refusal.code, refusal.message) or watched.uploads >= MOST_UPLOADS:
        _end_refused(store, intended, refusal.code or f"http_{refusal.status}", refusal.message, now)
        return None
    file_id = intended.input_file_id
    if now >= since + UPLOAD_SETTLES:
        file_id, watched.refused_since, watched.uploads = None, None, watched.uploads + 1
    store.shards.move(intended, ShardState.PENDING, input_file_id=file_id, sends=max(0, intended.sends - 1))
    return Waits(f"its upload is not usable yet: {refusal.message}", is_failing=True)


def give_up(store: Store, shard: Shard, why: str, now: datetime) -> None:
    """End a shard that could not be sent for too long: its rows go elsewhere, or fail."""
    _end_refused(store, shard, NOT_SENT, why, now)


def _end_refused(store: Store, shard: Shard, code: str, why: str, now: datetime) -> None:
    if shard.state is ShardState.PENDING:
        store.shards.move(shard, ShardState.SUBMITTING, intended_at=now)
        shard = store.shards.get(shard.id)
    refused = {"provider_status": "failed", "refusal_code": code, "refusal": why}
    store.shards.move(shard, ShardState.ENDED, **refused, ended_at=now, held=None)


def _facts_of(batch: RemoteBatch, now: datetime) -> dict[str, object]:
    return {
        "batch_id": batch.id,
        "provider_status": batch.status,
        "status_at": now,
        "submitted_at": now,
        "seen_at": now,
        "held": None,
    }


@dataclass(frozen=True, slots=True)
class SendOutcome:
    """What became of a shard between intent and fact: why, and further batches that were made of it."""

    why: str
    doubles: tuple[RemoteBatch, ...] = ()


def _may_appear(
    store: Store, shard: Shard, handle: BackendHandle, watched: PolledShard, seen: Sighting, now: datetime
) -> str | None:
    """Why a batch that its list does not show may exist all the same; None where it does not."""
    since = shard.intended_at or shard.created_at
    # The oftener it was asked for in vain, the longer it is looked for: each try may cost what it is about.
    patience = min(LONGEST_APPEAR, handle.api.appear_seconds * 2 ** max(0, shard.sends - 1))
    told = "it was created without a confirmation"
    if seen.is_blank and shard.account is not None and store.shards.of_account(handle.name, shard.account):
        patience, told = LONGEST_APPEAR, f"{handle.name} lists no batch at all, though this account has some there"
    appears_until = since + timedelta(seconds=patience)
    if now < appears_until:
        return f"{told}; by {appears_until:%H:%M} UTC it shows whether the batch exists"
    if watched.unseen < DENIALS and not handle.is_own:
        return f"{told}; its list is read once more"
    return None


def recover(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, watched: PolledShard, now: datetime
) -> SendOutcome | None:
    """A shard found between intent and fact: its batch is adopted, or it is pending again. Says which, and why.

    None while nobody can tell yet; what it waits for stands in `held`. What nobody can tell for two days is not
    waited for any longer. `watched` counts the lists that did not show it. Raises BackendError.
    """
    since = shard.intended_at or shard.created_at
    intent = Intent(
        shard.id,
        shard.rows,
        since,
        home.shard_input(shard.id),
        lambda batch_id: store.shards.asked_at(shard.backend, batch_id),
    )
    is_over = now >= since + UNDECIDED_FOR
    try:
        seen = handle.api.find(intent)
    except BackendError as error:
        if isinstance(error, AccountError) or not is_over:
            raise
        seen = Sighting()
    if seen.batch is not None:
        store.shards.move(shard, ShardState.SUBMITTED, **_facts_of(seen.batch, now))
        return SendOutcome(f"batch {seen.batch.id} belongs to this shard: adopted", seen.doubles)
    watched.unseen += seen.undecided is None
    if not is_over and (held := seen.undecided or _may_appear(store, shard, handle, watched, seen, now)) is not None:
        if held != shard.held:
            store.shards.note(shard, held=held)
        return None
    if shard.sends >= MOST_SENDS:
        give_up(store, shard, f"{shard.sends} creates were not answered, and no batch came of them", now)
        return SendOutcome("no batch belongs to this shard, and it is not submitted again")
    store.shards.move(shard, ShardState.PENDING, held=None)
    return SendOutcome("no batch belongs to this shard: it is submitted again")


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
        raise JobFilesError(f"cannot write {path}: {error}", hint="free disk space, then run it again") from error
