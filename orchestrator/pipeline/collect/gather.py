"""Collection of an ended batch: download its files, then settle its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from orchestrator.backends import BATCH_GONE, LineProblem
from orchestrator.core import batch_api, request_lines
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import AccountError, BackendError, RefusedError
from orchestrator.core.events import EventKind
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, Usage
from orchestrator.core.shards import HoldCode, Shard, ShardId
from orchestrator.pipeline import lost_answers
from orchestrator.pipeline.backend_admission import CallKind
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect import fetch, late_answers, reask, settling
from orchestrator.pipeline.collect.unanswered import EndedShard
from orchestrator.pipeline.finish.confidences import checks_of
from orchestrator.pipeline.poll_schedule import FilesPhase
from orchestrator.pipeline.shard_context import ShardWork
from orchestrator.pipeline.succession import open_jobs
from orchestrator.policy import batch_evidence
from orchestrator.policy.preflight import fields_of
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import refused_rows
from orchestrator.store import Store


class Gather:
    """Collects ended batches, and calls `settled` for each collected shard."""

    def __init__(self, work: ShardWork, settled: Callable[[Shard], None]) -> None:
        self._work = work
        self._settled = settled
        self._began = work.now()
        self._lost: dict[ShardId, RefusedError] = {}

    def collect(self, job: Job, shard: Shard) -> bool:
        """Fetch a shard's files from the provider, then settle its rows. True once the shard is settled."""
        handle, now = self._work.handle(shard), self._work.now()
        shard = self._dated(shard, now)
        lost = self._lost.get(shard.id)
        if (
            lost is not None
            and not lost_answers.is_agreed(job, shard.submitted_at)
            and self._sends_rows_again(job, shard)
        ):
            raise lost
        if not self._work.is_asking(shard):
            if not self._work.polls.is_due(shard, handle, now):
                return False
            if (shortage := self._work.backends.shortage()) is not None:
                self._work.polls.looked(shard, handle, now)
                return self._work.hold(job, shard, HoldCode.NO_ROOM, f"waits for room for its results: {shortage}")
            until = self._files_until(job, shard)
            if now < until and (held := self._work.admission_control.check_account(handle)) is not None:
                return self._work.hold(job, shard, HoldCode.ACCOUNT, held)
        try:
            done = self._work.ask(handle, shard, lambda: self._fetched(job, shard, handle))
        except AccountError as error:
            return self._work.refused_account(job, shard, handle, error, CallKind.LOOK)
        except BackendError as error:
            if handle.is_own:
                raise
            self._work.failed(shard, handle, error)
            return self._work.hold_failed(job, shard, error)
        if done is None:
            return False
        if isinstance(done.value, fetch.FilesAwaited):
            self._work.polls.failed(shard, handle, now)
            return self._work.hold(job, shard, HoldCode.FILES, done.value.why)
        self._settle(job, self._work.store.shards.get(shard.id), handle, *done.value)
        return True

    def awaited_in_vain(self, job: Job) -> RefusedError | None:
        """Return the error of a lost batch whose answers this job's rows wait for, or None."""
        awaited = self._work.store.awaited
        for source in awaited.sources(job.id) if self._lost else ():
            for shard in awaited.shards_of(job.id, source):
                if (lost := self._lost.get(shard)) is not None:
                    return lost
        return None

    def _fetched(
        self, job: Job, shard: Shard, handle: BackendHandle
    ) -> tuple[fetch.FetchedFiles, tuple[LineProblem, ...]] | fetch.FilesAwaited:
        now, until = self._work.now(), self._files_until(job, shard)
        known = self._work.polls.of(shard, now).phase(FilesPhase)
        known.begun_at = known.begun_at or now
        if now >= until:
            ended, told = shard.status_at or shard.created_at, self._time_since_end(shard, handle)
            until = batch_evidence.waits_until(until, ended, now, watched=now - known.begun_at, told=told)
        if self._repaid(job, shard, handle, until):
            until = now
        elif shard.rerouted_at is None:
            until = known.look(until, now)
        self._lost.pop(shard.id, None)
        if fetch.lacks_names(shard) and not handle.is_own and shard.refusal_code is None:
            try:
                shard = self._with_named_files(shard, handle)
            except BackendError:
                if now < until:
                    raise
        fetched = fetch.fetch(
            self._work.home,
            shard,
            handle,
            lambda: self._work.store.rows.custom_ids(shard.id),
            known,
            until,
            now,
            lambda: self._nothing_until(shard),
        )
        return fetched if isinstance(fetched, fetch.FilesAwaited) else (fetched, self._problems(shard, handle, until))

    def _time_since_end(self, shard: Shard, handle: BackendHandle) -> timedelta | None:
        """Return how long ago a batch ended by its backend's clock, or None if the backend states no time."""
        if handle.is_own or shard.batch_id is None or shard.refusal_code == BATCH_GONE:
            return None
        with suppress(BackendError):
            batch = handle.api.retrieve(shard.batch_id)
            return None if batch is None else batch.ago(batch.over_at)
        return None

    def _dated(self, shard: Shard, now: datetime) -> Shard:
        """Set times in the future to now: a wrong clock wrote them, and waits are counted from them."""
        times = ((name, getattr(shard, name)) for name in ("status_at", "ended_at"))
        if wrong := {name: now for name, at in times if at is not None and at > now}:
            self._work.store.shards.note(shard, **wrong)
        return replace(shard, **wrong)

    def _with_named_files(self, shard: Shard, handle: BackendHandle) -> Shard:
        batch = None if shard.batch_id is None else handle.api.retrieve(shard.batch_id)
        if batch is None or (batch.output_file_id is None and batch.error_file_id is None):
            return shard
        named = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
        self._work.store.shards.note(shard, **named)
        return replace(shard, **named)

    def _repaid(self, job: Job, shard: Shard, handle: BackendHandle, until: datetime) -> bool:
        """True if a shard's answers are gone and its rows may be paid for again. Raises RefusedError without consent.

        Only a batch that ended before this process began is checked, because files may be minutes late. Missing files
        count as gone an hour after the batch's end, or at `until` if that is earlier.
        """
        made, took = shard.submitted_at, shard.took_seconds
        if handle.is_own or made is None or took is None or shard.batch_id is None:
            return False
        over = made + timedelta(seconds=took)
        is_old = over < self._began and self._work.now() >= min(over + lost_answers.LATEST_FILES, until)
        if not is_old or lost_answers.ids_here(self._work.home, shard.id):
            return False
        if not lost_answers.are_gone(handle, (shard.output_file_id, shard.error_file_id)):
            return False
        if (over_for := self._time_since_end(shard, handle)) is not None and over_for < lost_answers.LATEST_FILES:
            return False  # this machine's clock was changed, and the files may only be late
        if shard.output_file_id is None and not shard.provider_completed and not shard.provider_output_tokens:
            return True  # only lines of rows that did not run are gone, and these rows cost nothing
        used = Usage(input_tokens=shard.provider_input_tokens, output_tokens=shard.provider_output_tokens)
        lost = lost_answers.LostAnswers(shard.batch_id, shard.id, shard.rows, made, used)
        priced = replace(shard, model=self._work.model(job, shard))
        try:
            told = lost.repay(
                self._work.store, job, priced, handle, self._work.now(), sends=self._sends_rows_again(job, shard)
            )
        except RefusedError as refusal:
            self._lost[shard.id] = refusal
            raise
        self._work.note(job, EventKind.HELD, told, shard)
        return True

    def _sends_rows_again(self, job: Job, shard: Shard) -> bool:
        store = self._work.store
        return job.cancel_requested_at is None or store.awaited.is_awaited(open_jobs(store, job.home), shard.id)

    def _files_until(self, job: Job, shard: Shard) -> datetime:
        """Return the latest time to wait for a batch's files. The wait is longer if the backend named the files
        late.
        """
        ended = shard.ended_at or shard.created_at
        until = self._work.until(job, shard, shard.status_at or ended)
        is_named = shard.output_file_id or shard.error_file_id
        return max(until, ended + batch_evidence.FILES_APPEAR) if is_named else until

    def _nothing_until(self, shard: Shard) -> datetime:
        ended = shard.ended_at or shard.created_at
        return batch_evidence.nothing_until(ended, self._work.store.shards.longest_file_wait(shard.backend))

    def _problems(self, shard: Shard, handle: BackendHandle, until: datetime) -> tuple[LineProblem, ...]:
        """Return why a backend refused a shard's batch. Empty if it was not refused or no reason came in time."""
        if shard.refusal_code is not None:
            return (LineProblem(shard.refusal_code, shard.refusal or ""),)
        if shard.provider_status != BatchStatus.FAILED or shard.batch_id is None:
            return ()
        try:
            batch = handle.api.retrieve(shard.batch_id)
        except BackendError:
            if self._work.now() < until:
                raise
            batch = None
        return () if batch is None else batch.problems

    def _settle(
        self,
        job: Job,
        shard: Shard,
        handle: BackendHandle,
        fetched: fetch.FetchedFiles,
        problems: tuple[LineProblem, ...],
    ) -> None:
        planning, now = self._work.backends.planning(job).part_of(shard), self._work.now()
        ended = EndedShard(
            job=job,
            shard=shard,
            handle=replace(handle, price=handle.price.at(now)),
            model=self._work.model(job, shard),
            checks=checks_of(job),
            problems=problems,
            elsewhere=planning.has_other_than(shard.backend),
            standing=planning.standing(shard),
            retries=reask.retries_of(job),
            now=now,
            fetched=fetched,
            blames_input=self._work.admission_control.blames_input(handle),
        )
        tally = settling.collect(self._work.store, self._work.home, ended)
        if not handle.is_own:
            record(self._work.store, self._work.home, shard, ended.model, tally.answered, self._work.now())
        # Reported before the shard is closed: a killed process may repeat the report, but never omits it.
        if tally.swapped is not None:
            self._work.note(job, EventKind.SWAPPED, tally.swapped, shard)
        self._work.store.failures.trace(job)
        self._work.admission_control.learn(handle, shard, tally.stop, tally.wait, tally.refusal)
        settling.close(self._work.store, self._work.home, shard, self._work.now(), tally.owed, tally.answers)
        self._work.polls.forget(shard)
        self._work.note(job, EventKind.COLLECTED, str(tally), shard)
        for task, refused in tally.refused_alike.items():
            rows = refused_rows(job, shard.model, task)
            why = f"{shard.backend} refuses {rows}: {refused.message}"
            self._work.store.jobs.note(job.id, EventKind.HELD, why, now, shard.id, code=refused.code)
        self._settled(shard)
        self._work.budgets.warn(job)

    def take_late(self, job: Job, shard: Shard, handle: BackendHandle) -> late_answers.Late:
        model, checks = self._work.model(job, shard), checks_of(job)
        return late_answers.take(
            self._work.store, self._work.home, job, shard, handle, model, checks, self._work.now()
        )


class _Sent(msgspec.Struct):
    custom_id: str
    url: str = ""


_decode = json_decoder(_Sent).decode


def record(store: Store, home: Home, shard: Shard, model: str, answered: Mapping[str, str], now: datetime) -> None:
    """Record which fields were sent by answered rows, for one row of each task.

    The fields are read from the shard's input file. If that file is gone, nothing is recorded.
    """
    wanted, found = set(answered.values()), dict[str, set[str]]()
    try:
        with home.shard_input(shard.id).open("rb") as source:
            for _, _, line in request_lines.lines(source):
                if not wanted:
                    break
                sent = _decode(line)
                if sent.custom_id in wanted:
                    wanted.remove(sent.custom_id)
                    found.setdefault(sent.url, set()).add(fields_of(line))
    except (OSError, ValueError, *batch_api.JSON_ERRORS):
        return
    for endpoint, fields in found.items():
        store.proofs.add(shard.backend, endpoint, model, fields, now)
