"""One shard at a time: from its rows to a batch, until the batch is over and its rows are settled.

What asks a hosted backend something is carried out by the crew, off the engine's thread; our own server is asked at
once. Whatever goes wrong at a backend, the shard waits, says what for, and has an end to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from threading import Lock

from orchestrator import evidence, polling
from orchestrator.backends import BATCH_GONE, LineProblem, RemoteBatch
from orchestrator.errors import AccountError, BackendBusy, BackendError, BackendRefused, UsageError
from orchestrator.home import Home
from orchestrator.model import Job, Shard, ShardId, ShardState
from orchestrator.pipeline import again, budget, collect, fetch, late, submit, track
from orchestrator.pipeline.chores import Chores
from orchestrator.pipeline.crew import Crew, Inline
from orchestrator.pipeline.finish import checks_of
from orchestrator.pipeline.governor import Asked, Governor
from orchestrator.pipeline.lanes import Lane, Lanes
from orchestrator.pipeline.leftovers import Ended, Tally
from orchestrator.quota import Split
from orchestrator.requests import resolve_model
from orchestrator.store import Store
from orchestrator.wire import BatchStatus

SENDING_FOR = timedelta(days=2)
"""So long a batch may fail to be sent until its rows are given up: it goes elsewhere, or fails."""
BUSY_FOR = timedelta(days=7)
"""The same where the backend says that it has no room, or refuses the account: both are mended by people."""


UNREACHABLE = timedelta(seconds=30)
"""A backend that has not answered for so long is told as one that does not."""


class Batches:
    """Takes the shards of a home's jobs through their states."""

    def __init__(
        self,
        store: Store,
        home: Home,
        lanes: Lanes,
        budgets: budget.SharedBudgets,
        now: Callable[[], datetime],
        crew: Crew,
    ) -> None:
        self._store = store
        self._home = home
        self._lanes = lanes
        self._budgets = budgets
        self._now = now
        self._crew = crew
        self._inline = Inline()
        self._asks = Lock()
        self.governor = Governor(store, now)
        self.looks = track.Looks()
        self.chores = Chores(store, home, lanes.open, crew, now, self._noted, self._take_late)

    def advance(self, job: Job, shard: Shard) -> bool:
        """One step of a shard, or what came of the one that was begun; whether something moved. Raises OrchError."""
        match shard.state:
            case ShardState.PENDING:
                return self._send(job, shard)
            case ShardState.SUBMITTING:
                return self._patiently(job, shard, self._recover)
            case ShardState.SUBMITTED:
                return self._patiently(job, shard, self._track)
            case ShardState.ENDED:
                return self._collect(job, shard)
            case ShardState.COLLECTED | ShardState.CANCELLED:
                return False

    def dissolve(self, job: Job, shard: Shard, reason: str) -> None:
        """Give up a shard that was not sent: its rows wait for another one."""
        collect.abandon(self._home, shard)
        self._store.shards.dissolve(shard, reason)
        self.chores.add(shard.id)
        self._note(job, "split", reason, shard)

    def give_up(self, shard: Shard) -> None:
        """Let a shard that was not sent come to its end; its rows get it from whoever calls this."""
        collect.abandon(self._home, shard)
        self._store.shards.move(shard, ShardState.CANCELLED, held=None)
        self.chores.add(shard.id)

    def lane(self, shard: Shard) -> Lane:
        """The backend of a shard."""
        return self._lanes.open(shard.backend)

    def model(self, job: Job, shard: Shard) -> str:
        """What a shard's model is called at its backend."""
        return resolve_model(shard.model, shard.backend, self._lanes.models(job)) or shard.model

    def unreachable(self, job: Job) -> str | None:
        """Why nothing can be done about a job, as no backend that has batches of it answers; None where one does."""
        why = None
        for shard in self._store.shards.of_job(job.id):
            if shard.state.is_final or shard.state is ShardState.PENDING:
                continue
            lane = self.lane(shard)
            failing = self.looks.of(shard, self._now()).failing_since
            is_failing = failing is not None and self._now() >= failing + UNREACHABLE
            is_refused = self.governor.refused_for(lane, Asked.LOOK) >= UNREACHABLE
            is_hanging = self._crew.busy_for(shard.id) >= UNREACHABLE.total_seconds()
            if lane.is_own or not (is_failing or is_refused or is_hanging):
                return None
            why = why or shard.held or f"{lane.name} does not answer"
        return why

    # --- what all stages have in common

    def _asked(self, lane: Lane, shard: Shard, stage: Callable[[], bool], *, alone: bool = False) -> bool:
        """What came of a stage that asks the backend; False while it is under way."""
        crew = self._inline if lane.is_own else self._crew
        done = crew.do(lane.name, shard.id, stage, alone=alone)
        return False if done is None else done.value

    def _patiently(self, job: Job, shard: Shard, stage: Callable[[Job, Shard, Lane], bool]) -> bool:
        """A stage of a batch that is there: where its provider fails, it is done again later, and no other waits."""
        lane, now = self.lane(shard), self._now()
        if not self._crew.is_busy(shard.id):
            ends = job.cancel_requested_at is not None or shard.pulled_at is not None
            if ends and shard.state is ShardState.SUBMITTED and shard.provider_status != "cancelling":
                self.looks.hurry(shard, now)
            if not self.looks.is_due(shard, lane, now):
                return False
            is_refused = self.governor.refused_for(lane, Asked.LOOK) >= BUSY_FOR
            if is_refused and shard.state is ShardState.SUBMITTED:
                return self._lose(job, shard, "its account has been refused for a week")
            if (held := self.governor.check_account(lane)) is not None:
                return self._hold(job, shard, held)
        try:
            moved = self._asked(lane, shard, lambda: stage(job, self._store.shards.get(shard.id), lane))
            self.governor.worked(lane, Asked.LOOK)
            return moved
        except AccountError as error:
            return self._refused_account(job, shard, lane, error, Asked.LOOK)
        except UsageError as error:
            self.looks.failed(shard, lane, self._now())
            self._hold(job, self._store.shards.get(shard.id), error.message)
            raise
        except BackendError as error:
            if lane.is_own:
                raise
            self._failed(shard, lane, error)
            current = self._store.shards.get(shard.id)
            return self._is_lost(job, current, lane) or self._hold(job, current, error.message)

    def _failed(self, shard: Shard, lane: Lane, error: BackendError) -> None:
        """A call brought an error: look again later."""
        after = error.retry_after if isinstance(error, BackendRefused) else None
        self.looks.failed(shard, lane, self._now(), after, is_busy=isinstance(error, BackendBusy))

    def _refused_account(self, job: Job, shard: Shard, lane: Lane, error: AccountError, what: Asked) -> bool:
        """An account that is refused is tried again slowly, before it is told as an error."""
        self.governor.stop(lane, error.message, what)
        held = self.governor.check_account(lane) or error.message
        return self._hold(job, self._store.shards.get(shard.id), held)

    def _hold(self, job: Job, shard: Shard, why: str) -> bool:
        """Say what a shard waits for; it is told once, however often it is looked at."""
        if shard.held != why:
            if shard.held is None:
                self._note(job, "held", why, shard)
            self._store.shards.note(shard, held=why)
        return False

    # --- pending

    def _send(self, job: Job, shard: Shard) -> bool:
        lane = self.lane(shard)
        if self._crew.is_busy(shard.id):
            return self._sent(job, shard, lane)
        if shard.pulled_at is not None or not self._lanes.planning(job).may_take(shard):
            # It was taken back before it was known whether there is a batch of it; or it must not go there any more.
            self.dissolve(job, shard, shard.pulled_for or "its backend is not local any more")
            return True
        if not self.looks.is_due(shard, lane, self._now()):
            return False
        if self._is_unsendable(job, shard, lane):
            return True
        if (held := self.governor.check_account(lane)) is not None:
            return self._hold(job, shard, held)
        lane.price.known(self.model(job, shard), shard.endpoint)
        room = self.governor.hold(lane, shard)
        if isinstance(room, Split):
            self.dissolve(job, shard, room.reason)
            return True
        if (held := room or self._settles(shard, lane) or self._over_budget(job, shard)) is not None:
            return self._hold(job, shard, held)
        return self._sent(job, shard, lane)

    def _is_unsendable(self, job: Job, shard: Shard, lane: Lane) -> bool:
        """Whether a shard could not be sent for so long that its rows go elsewhere, or fail."""
        watched, now = self.looks.of(shard, self._now()), self._now()
        is_failing = watched.failing_since is not None and now >= watched.failing_since + SENDING_FOR
        is_busy = watched.busy_since is not None and now >= watched.busy_since + BUSY_FOR
        if not is_failing and not is_busy and self.governor.refused_for(lane, Asked.SEND) < BUSY_FOR:
            return False
        submit.give_up(self._store, shard, shard.held or "its backend took nothing", now)
        self.looks.forget(shard)
        self._note(job, "ended", f"it could not be sent: {shard.held}", shard)
        return True

    def _settles(self, shard: Shard, lane: Lane) -> str | None:
        """Why an upload is left alone for a while, where earlier ones could not be found at once."""
        settles, watched = self.governor.settles(lane), self.looks.of(shard, self._now())
        if not settles or shard.input_file_id is None:
            return None
        watched.uploaded_at = watched.uploaded_at or self._now()
        at = watched.uploaded_at + settles
        return None if self._now() >= at else f"its upload is given until {at:%H:%M:%S} UTC to be found there"

    def _over_budget(self, job: Job, shard: Shard) -> str | None:
        others = [other for other in self._store.shards.of_job(job.id) if other.id != shard.id]
        spent = self._store.ledger.spent(job.id)
        over = budget.no_room(job, shard, others, spent, self.lane, self.model)
        return over or self._budgets.no_room(job, shard)

    def _sent(self, job: Job, shard: Shard, lane: Lane) -> bool:
        """Send a shard, or take in what came of that."""
        try:
            moved = self._asked(lane, shard, lambda: self._submit(job, shard, lane), alone=True)
            if moved:
                self.governor.worked(lane, Asked.SEND)
            return moved
        except AccountError as error:
            return self._refused_account(job, shard, lane, error, Asked.SEND)
        except BackendBusy as busy:
            watched = self.looks.of(shard, self._now())
            watched.busy_since, watched.failing_since = watched.busy_since or self._now(), None
            self.governor.was_busy(lane, shard, busy)
            return self._hold(job, self._store.shards.get(shard.id), busy.message)
        except BackendError as error:
            if lane.is_own:
                raise
            self._failed(shard, lane, error)
            current = self._store.shards.get(shard.id)
            if current.state is ShardState.SUBMITTING:
                self.looks.forget(shard)
            self._hold(job, current, error.message)
            raise

    def _submit(self, job: Job, shard: Shard, lane: Lane) -> bool:
        watched = self.looks.of(shard, self._now())
        admission = submit.Admission(
            self._now,
            lambda: self._settles(self._store.shards.get(shard.id), lane) or self._over_budget(job, shard),
            lambda: self._budgets.no_room(job, shard),
            self._asks,
        )
        models = self._lanes.models(job)
        batch = submit.submit(self._store, self._home, job, shard, lane, models, watched, admission)
        if isinstance(batch, submit.Waits):
            if batch.is_failing:
                self.looks.failed(shard, lane, self._now())
            return self._hold(job, self._store.shards.get(shard.id), batch.why)
        self.looks.forget(shard)
        said = "the backend refused it" if batch is None else f"batch {batch.id} of {shard.rows:,} rows created"
        self._note(job, "submitted", said, shard)
        return True

    # --- between intent and fact

    def _recover(self, job: Job, shard: Shard, lane: Lane) -> bool:
        shard = track.check_account(self._store, shard, lane)
        found = submit.recover(self._store, self._home, shard, lane, self._now())
        self.looks.looked(shard, lane, self._now())
        if found is None:
            return False
        self.looks.forget(shard)
        self._note(job, "recovered", found.why, shard)
        for double in found.doubles:
            self._end_double(job, shard, lane, double)
        return True

    def _end_double(self, job: Job, shard: Shard, lane: Lane, double: RemoteBatch) -> None:
        """End a second batch that a backend has made of one create; what it has done by then is billed."""
        with suppress(BackendError):
            if not double.status.is_final:
                lane.api.cancel(double.id)
        told = f"{lane.name} made batch {double.id} of the same rows as well: it is asked to end, and may be billed"
        self._note(job, "double", told, shard)

    # --- at the backend

    def _track(self, job: Job, shard: Shard, lane: Lane) -> bool:
        now = self._now()
        shard = track.check_account(self._store, shard, lane)
        batch = self._retrieved(job, shard, lane)
        if not isinstance(batch, RemoteBatch):
            return batch
        usual = track.UNKNOWN if lane.is_own else polling.usual_of(self._store.shards.durations(lane.name))
        seen = (batch.status, batch.completed, batch.failed)
        moved_at = self.looks.looked(shard, lane, now, seen=seen, usual=usual)
        self.looks.of(shard, now).denied = None
        if batch.status in track.PAST_VALIDATION and not lane.is_own:
            self.governor.accepted(lane, shard)
        facts = track.facts_of(shard, batch, now)
        if not lane.is_own:
            facts["seen_at"] = now
        held = self._over(job, shard, lane, batch, facts) if batch.status.is_final else None
        if batch.status.is_final and held is None:
            self._end(job, shard, batch, facts)
            return True
        if not batch.status.is_final:
            if self._is_lost(job, shard, lane):
                return True
            held = self._asked_to_end(job, shard, lane, batch)
            held = held or track.waits_for(shard, lane, batch, moved_at, usual, now)
        if facts:
            self._store.shards.note(shard, **facts)
        if held is not None:
            self._hold(job, shard, held)
        elif shard.held is not None:
            self._store.shards.note(shard, held=None)
        return False

    def _retrieved(self, job: Job, shard: Shard, lane: Lane) -> RemoteBatch | bool:
        """The batch as its backend shows it; or, where it does not know it, whether the shard has moved for that."""
        assert shard.batch_id is not None
        batch = lane.api.retrieve(shard.batch_id)
        if batch is not None:
            return batch
        now, is_unlisted = self._now(), None
        if lane.is_own:
            return self._lose(job, shard, "the backend knows this batch no longer")
        with suppress(BackendError):
            seen = lane.api.listed(shard.batch_id, shard.submitted_at or shard.created_at)
            if seen.batch is not None:
                return seen.batch
            is_unlisted = True if seen.undecided is None else None
        denied = track.denied(self.looks.of(shard, now), now, is_unlisted=is_unlisted)
        self.looks.failed(shard, lane, now)
        verdict = evidence.gone(denied, lane.name, now, is_needed=shard.pulled_at is not None)
        if verdict.why is not None:
            return self._hold(job, shard, verdict.why)
        return self._lose(job, shard, "the backend knows this batch no longer")

    def _is_lost(self, job: Job, shard: Shard, lane: Lane) -> bool:
        """Whether a batch is given up that its backend does not show, or does not end."""
        if shard.state is not ShardState.SUBMITTED or lane.is_own:
            return False
        may_leave = self._lanes.planning(job).has_other_than(shard.backend)
        watched, now = self.looks.of(shard, self._now()), self._now()
        why = track.course_of(job, shard, lane, watched, may_leave=may_leave).lost(now)
        if why is None and watched.busy_since is not None and now >= watched.busy_since + BUSY_FOR:
            why = "its backend has been too busy for a week to say how it is"
        return why is not None and self._lose(job, shard, why)

    def _lose(self, job: Job, shard: Shard, why: str) -> bool:
        """Take a batch for gone: its rows go on, and its answers are looked for for a while."""
        now = self._now()
        facts = {"provider_status": BatchStatus.FAILED, "status_at": now, "refusal": f"{BATCH_GONE}: {why}"}
        self._store.shards.move(shard, ShardState.ENDED, ended_at=now, held=None, **facts)
        self.looks.forget(shard)
        self._note(job, "ended", f"the batch is taken for gone: {why}", shard)
        return True

    def _asked_to_end(self, job: Job, shard: Shard, lane: Lane, batch: RemoteBatch) -> str | None:
        """Ask a batch to end that has to; why it does not, None where it does or need not."""
        now = self._now()
        watched = self.looks.of(shard, now)
        is_overdue = now >= track.course_of(job, shard, lane, watched, may_leave=False).overdue
        if job.cancel_requested_at is None and shard.pulled_at is None and not is_overdue:
            return None
        watched.asked_at = watched.asked_at or now
        if batch.status is BatchStatus.CANCELLING:
            return None
        assert shard.batch_id is not None
        try:
            lane.api.cancel(shard.batch_id)
        except (BackendBusy, AccountError):
            raise
        except BackendRefused as refusal:
            return f"{refusal.message}; its end is waited for"
        self.looks.looked(shard, lane, now, seen="asked to end")
        return None

    def _over(
        self, job: Job, shard: Shard, lane: Lane, batch: RemoteBatch, facts: Mapping[str, object]
    ) -> str | None:
        """What a batch that is over is waited for, None where it may be collected."""
        now = self._now()
        since = shard.status_at if shard.provider_status == batch.status else now
        seen = replace(shard, started_at=facts.get("started_at", shard.started_at))  # type: ignore[arg-type]
        return track.files_named(seen, batch, self._until(job, shard, since or now), now).why

    def _until(self, job: Job, shard: Shard, ended: datetime) -> datetime:
        """Until when answers that exist are waited for."""
        if shard.pulled_at is not None or job.cancel_requested_at is not None:
            return ended + evidence.NO_ANSWER
        usual = polling.usual_of(self._store.shards.durations(shard.backend))
        takes = timedelta(seconds=usual.total_p90) if usual.is_known else None
        return evidence.answers_until(ended, job.deadline_at, takes)

    def _files_until(self, job: Job, shard: Shard) -> datetime:
        """The same for the files of a batch: as long as they were named late, they have a moment to be there."""
        ended = shard.ended_at or shard.created_at
        until = self._until(job, shard, shard.status_at or ended)
        return max(until, ended + evidence.FILES_APPEAR) if shard.output_file_id or shard.error_file_id else until

    def _end(self, job: Job, shard: Shard, batch: RemoteBatch, facts: Mapping[str, object]) -> None:
        files = {"output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id}
        now = self._now()
        self._store.shards.move(shard, ShardState.ENDED, ended_at=now, **facts, **files, held=None)
        if batch.status is BatchStatus.COMPLETED and shard.pulled_at is None and shard.submitted_at is not None:
            took = (now - shard.submitted_at).total_seconds()
            self._store.forecasts.settled(job.id, "turnaround", took, now, shard_id=shard.id)
        self.looks.forget(shard)
        self._note(job, "ended", f"the batch is {batch.status}", shard)

    # --- over

    def _collect(self, job: Job, shard: Shard) -> bool:
        """Bring the files, then settle the rows: the one is the provider's time, the other ours."""
        lane, now = self.lane(shard), self._now()
        if not self._crew.is_busy(shard.id):
            if not self.looks.is_due(shard, lane, now):
                return False
            if (shortage := self._lanes.shortage()) is not None:
                self.looks.looked(shard, lane, now)
                return self._hold(job, shard, f"waits for room for its results: {shortage}")
            until = self._files_until(job, shard)
            if now < until and (held := self.governor.check_account(lane)) is not None:
                return self._hold(job, shard, held)
        crew = self._inline if lane.is_own else self._crew
        try:
            done = crew.do(lane.name, shard.id, lambda: self._fetched(job, shard, lane))
        except AccountError as error:
            return self._refused_account(job, shard, lane, error, Asked.LOOK)
        except BackendError as error:
            if lane.is_own:
                raise
            self._failed(shard, lane, error)
            return self._hold(job, shard, error.message)
        if done is None:
            return False
        if isinstance(done.value, str):
            self.looks.failed(shard, lane, now)
            return self._hold(job, shard, done.value)
        self._settle(job, shard, lane, *done.value)
        return True

    def _fetched(self, job: Job, shard: Shard, lane: Lane) -> tuple[fetch.Fetched, tuple[LineProblem, ...]] | str:
        """The files of a batch that is over, and why it failed; or what is waited for."""
        now, until = self._now(), self._files_until(job, shard)
        rows = {row.custom_id for row in self._store.rows.of_shard(shard.id)}
        fetched = fetch.fetch(self._home, shard, lane, rows, self.looks.of(shard, now), until, now)
        return fetched if isinstance(fetched, str) else (fetched, self._problems(shard, lane, until))

    def _problems(self, shard: Shard, lane: Lane, until: datetime) -> tuple[LineProblem, ...]:
        """Why a backend refused a shard's batch; nothing where it did not, or does not say so in time."""
        if shard.refusal is not None:
            code, _, message = shard.refusal.partition(": ")
            return (LineProblem(code, message),)
        if shard.provider_status != BatchStatus.FAILED or shard.batch_id is None:
            return ()
        try:
            batch = lane.api.retrieve(shard.batch_id)
        except BackendError:
            if self._now() < until:
                raise
            batch = None
        return () if batch is None else batch.problems

    def _settle(
        self, job: Job, shard: Shard, lane: Lane, fetched: fetch.Fetched, problems: tuple[LineProblem, ...]
    ) -> None:
        planning = self._lanes.planning(job)
        ended = Ended(
            job=job,
            shard=shard,
            lane=lane,
            model=self.model(job, shard),
            checks=checks_of(job),
            problems=problems,
            elsewhere=planning.has_other_than(shard.backend),
            standing=planning.standing(shard),
            retries=again.retries_of(job),
            now=self._now(),
            fetched=fetched,
            blames_input=self.governor.blames_input(lane),
        )
        tally = collect.collect(self._store, self._home, ended)
        self.governor.learn(lane, shard, tally)
        collect.close(self._store, self._home, shard, self._now(), tally.owed)
        self.looks.forget(shard)
        self._collected(job, shard, tally)

    def _collected(self, job: Job, shard: Shard, tally: Tally) -> None:
        self._note(job, "collected", str(tally), shard)
        self.chores.add(shard.id)
        self._budgets.warn(job)

    def _take_late(self, job: Job, shard: Shard, lane: Lane) -> late.Late:
        model, checks = self.model(job, shard), checks_of(job)
        return late.take(self._store, self._home, job, shard, lane, model, checks, self._now())

    def _noted(self, job: Job, kind: str, reason: str, shard: Shard) -> None:
        self._note(job, kind, reason, shard)

    def _note(self, job: Job, kind: str, reason: str, shard: Shard) -> None:
        self._store.jobs.note(job.id, kind, reason, self._now(), ShardId(shard.id))
