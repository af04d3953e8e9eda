"""Preflight before a batch: one real row of each field set that its backend's model has never answered.

A preflight is a shard of one row, sent to the provider's synchronous endpoint. orch commits its intent, asks the row,
and keeps the answer. Batches of the same model wait for the preflight. If a field, a schema or the model is refused,
these batches are held back; any other result releases them. If a process is killed between intent and answer, the row
may be billed. It is booked as uncertain, and goes into a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct

from orchestrator.backends.synchronous_rows import result_line
from orchestrator.core.atomic import durable
from orchestrator.core.batch_api import BatchStatus, Provenance
from orchestrator.core.errors import InputError, JobFilesError, NotSent
from orchestrator.core.model import Job
from orchestrator.core.money import money
from orchestrator.core.request_lines import written_line
from orchestrator.core.shards import Shard, ShardId, ShardState
from orchestrator.core.tokens import estimate
from orchestrator.pipeline.backend_handles import BackendHandle, Models
from orchestrator.pipeline.collect.learned_refusals import LearnedRefusals
from orchestrator.pipeline.plan.cache_first import CachedBackend, CacheFirst, cache_first, mark_of
from orchestrator.pipeline.plan.orders import Sending
from orchestrator.pipeline.plan.unproven import is_priced, is_wanted, unproven
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.pipeline.submit.create_once import AdmissionCheck, Waits, intend, write_input, writer_of
from orchestrator.pipeline.submit.rows_to_shards import pending_shard
from orchestrator.policy.model_names import resolve_model
from orchestrator.policy.preflight import (
    FEW_ROWS,
    REFUSED,
    DirectAnswer,
    PreflightFinding,
    body_of,
    is_about_model,
    judge,
)
from orchestrator.policy.prompt_cache import CacheMark, cache_of, marked
from orchestrator.policy.results import CANCELLED, RowRefusal
from orchestrator.policy.sharding import Range
from orchestrator.settings.home import Home
from orchestrator.store import Store

UNKNOWN = "it was sent before a stop; whether it was answered is unknown"


class Asked(Struct, frozen=True):
    """The result of a preflight row, with the provider's message."""

    finding: PreflightFinding
    message: str


def ask(
    store: Store,
    home: Home,
    job: Job,
    shard: Shard,
    handle: BackendHandle,
    models: Models,
    admission: AdmissionCheck,
) -> Asked | Waits:
    """Ask the row of a pending preflight shard. Afterwards, the shard has ended or waits.

    Raises NotSent if the request was not sent; the shard is then pending again.
    """
    model = resolve_model(shard.model, shard.backend, models) or shard.model
    writer = writer_of(store, job, shard, handle, models, admission.now())
    path = home.shard_input(shard.id)
    write_input(store, home, shard, path, writer)
    line = _with_mark(path.read_bytes(), mark_of(job, shard))
    intended = intend(store, home, shard, admission, handle.api.account(), shard.window_seconds)
    if isinstance(intended, Waits):
        return intended
    try:
        answer = handle.api.ask(writer.endpoint, line)
    except NotSent as error:
        store.shards.move(intended, ShardState.PENDING, held=error.message, sends=shard.sends)
        raise
    except InputError as error:  # a batch could not contain this row either, and reports it
        answer = DirectAnswer(None)
        return _end(store, home, intended, answer, Asked(PreflightFinding.UNCLEAR, error.message), admission.now())
    is_unlisted = is_about_model(answer) and handle.api.lists_model(model) is False
    asked = Asked(judge(answer, body_of(line), is_unlisted=is_unlisted), _words(answer))
    if cache_of(shard.preflight) is not None and asked.finding is PreflightFinding.REFUSED:
        # The refusal may concern the cache mark, which the batch does not have.
        asked = Asked(PreflightFinding.UNCLEAR, asked.message)
    lessons = LearnedRefusals(store, home, job, intended, handle, model, admission.now())
    if asked.finding is PreflightFinding.REFUSED and _is_respelled(store, intended, answer, lessons):
        asked = Asked(PreflightFinding.UNCLEAR, f"{asked.message}; it is sent again in another spelling")
    return _end(store, home, intended, answer, asked, admission.now())


def _with_mark(line: bytes, marks: Sequence[CacheMark]) -> bytes:
    if not marks:
        return line
    parsed = written_line(line)
    parsed.body = dict(marked(parsed.custom_id, parsed.body, marks))
    return msgspec.json.encode(parsed)


def _is_respelled(store: Store, shard: Shard, answer: DirectAnswer, lessons: LearnedRefusals) -> bool:
    (row,) = store.rows.of_shard(shard.id)
    assert answer.error is not None, "it is refused"
    error = answer.error
    refusal = RowRefusal(error.status, error.code, error.kind, error.message, error.param)
    field = lessons.field_of(row, refusal)
    return field is not None and lessons.learn(row, refusal, field)


def _words(answer: DirectAnswer) -> str:
    error = answer.error
    if error is None:
        return ""
    return f"{error.message or 'no reason given'}{f' ({error.status})' if error.status else ''}"


def _end(store: Store, home: Home, intended: Shard, answer: DirectAnswer, asked: Asked, now: datetime) -> Asked:
    (custom_id,) = store.rows.custom_ids(intended.id)
    if answer.is_answer:
        _keep(home, intended, "output", result_line(custom_id, answer))
        facts: dict[str, object] = {"provider_status": BatchStatus.COMPLETED, "provider_completed": 1}
    else:
        if answer.may_be_billed:
            _keep(home, intended, "error", _unanswered_line(custom_id))
        facts = {"provider_status": BatchStatus.FAILED, "refusal": asked.message}
    if asked.finding is PreflightFinding.REFUSED and answer.error is not None:
        facts["refusal_code"] = answer.error.code or REFUSED
    store.shards.move(intended, ShardState.ENDED, status_at=now, ended_at=now, held=None, **facts)
    return asked


def recover(store: Store, home: Home, shard: Shard, now: datetime) -> Asked:
    """End a preflight whose process stopped after the intent. Its answer was kept, or the row may be billed."""
    if home.results(shard.id, "output").exists():
        facts = {"provider_status": BatchStatus.COMPLETED, "provider_completed": 1}
        store.shards.move(shard, ShardState.ENDED, status_at=now, ended_at=now, held=None, **facts)
        return Asked(PreflightFinding.ANSWERED, "")
    answer = DirectAnswer(None, may_be_billed=True)
    return _end(store, home, shard, answer, Asked(PreflightFinding.UNCLEAR, UNKNOWN), now)


def _unanswered_line(custom_id: str) -> bytes:
    orch = Provenance("", latency_ms=0, upstream_seconds=0.0, attempts=1, uncertain=1)
    error = {"code": CANCELLED, "message": UNKNOWN}
    told = {"custom_id": custom_id, "response": None, "error": error, "orch": orch}
    return msgspec.json.encode(told) + b"\n"


def _keep(home: Home, shard: Shard, kind: str, line: bytes) -> None:
    path = home.results(shard.id, kind)
    try:
        with durable(path) as file:
            file.write(line)
    except OSError as error:
        raise JobFilesError(f"cannot write {path}: {error.strerror}", hint="free disk space") from error


class Standing(Struct, frozen=True):
    """Effect of preflight rows on a batch.

    `waits_for` says why the batch waits; None means that it may be sent. `outdated` batches are planned again, so
    that a preflight row without an answer can join them.
    """

    waits_for: str | None = None
    outdated: tuple[Shard, ...] = ()


class Preflights:
    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._joined: set[ShardId] = set()

    def plan(self, job: Job, handle: BackendHandle, order: Sending) -> list[Shard]:
        """Create a shard for each preflight row of an order. Return the new shards."""
        if not handle.preflight or order.rows <= FEW_ROWS or not is_wanted(job):
            return []
        store, now = self._work.store, self._work.now()
        models, asked = self._work.backends.models(job), self._requests_asked(job, handle)
        found = [
            (one, one.fields, f"{one.model} has not answered such requests at {handle.name} before")
            for one in unproven(
                store,
                self._work.home,
                job,
                handle.name,
                handle.recipient,
                models,
                now,
                order.avoid,
                canary=order.canary,
                only=order.only,
            )
            if is_priced(handle.price, one)
        ]
        known = {one.row.seq for one, _, _ in found}
        for first in self._cache_first(job, handle, order, models):
            if first.row.row.seq not in known:
                why = f"its cache saves about {money(first.saves)} of the batches' cost"
                found.append((first.row, first.preflight, why))
        number, added = store.shards.next_number(job.id), list[Shard]()
        for one, preflight, why in found:
            row = one.row
            if (row.endpoint, row.model, preflight) in asked:
                continue
            of_row = Range(
                row.endpoint, row.model, row.seq, row.seq, 1, row.span.length + 1, estimate(row.span.length),
                max_output=row.max_output,
            )  # fmt: skip
            shard = pending_shard(job, number, handle.name, of_row, f"asked first: {why}", now, preflight)
            store.shards.add(shard, of_row, order.avoid, canary=order.canary)
            added.append(shard)
            number += 1
        return added

    def _cache_first(self, job: Job, handle: BackendHandle, order: Sending, models: Models) -> Iterator[CacheFirst]:
        if handle.prompt_cache is None:
            return
        backend = CachedBackend(handle.name, handle.recipient, handle.price, handle.prompt_cache)
        yield from cache_first(
            self._work.store, self._work.home, job, backend, models, self._work.now(), order.avoid,
            canary=order.canary, only=order.only,
        )  # fmt: skip

    def _requests_asked(self, job: Job, handle: BackendHandle) -> set[tuple[str, str, str]]:
        """Return the requests already asked as preflights and not refused. Asking them again would show nothing
        new.
        """
        return {
            (one.endpoint, one.model, one.preflight)
            for one in self._work.store.shards.of_job(job.id)
            if one.preflight is not None
            and one.backend == handle.name
            and one.state is ShardState.COLLECTED
            and one.refusal_code is None
        }

    def standing(self, shard: Shard) -> Standing:
        """Return the effect of preflight rows on a batch of their model."""
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
