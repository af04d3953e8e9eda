"""The life of a batch: validating → in_progress → finalizing → its end, and resuming after a kill.

A batch's record holds its state, and its result files show which rows are done. Every step can be interrupted at any
point, because the next start reads both and continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.core import batch_api
from orchestrator.core.batch_api import Batch, BatchStatus, LineErrors, RequestCounts
from orchestrator.core.clock import now as clock_now
from orchestrator.core.counts import number_of
from orchestrator.server.batch_problems import BatchChanged, Troubles
from orchestrator.server.dispatch import body_changes, results
from orchestrator.server.dispatch.active_batch import ActiveBatch
from orchestrator.server.dispatch.dispatcher import Dispatcher
from orchestrator.server.dispatch.plan import InputRows, make_plan
from orchestrator.server.dispatch.send_log import read_doubts
from orchestrator.server.dispatch.upstream_queue import UpstreamQueues
from orchestrator.server.logs import log_fields
from orchestrator.server.memory_limits import Checks
from orchestrator.server.records import BatchRecord, FileRecord, Records

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 10.0
STORAGE_SECONDS = 1.0
COUNT_SECONDS = 60.0
BYTES_PER_TOKEN = 4
"""Approximate bytes of text per token, to convert the size of a prefix cache."""
NOT_RUN = {
    BatchStatus.CANCELLING: (
        "batch_cancelled",
        "This request was not executed because the batch was cancelled.",
    ),
    BatchStatus.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
}


class Batches:
    """All batches of a server: creates, resumes, stops and ends them."""

    def __init__(
        self,
        records: Records,
        root: Path,
        dispatcher: Dispatcher,
        writer: results.Writer,
        *,
        max_rows: int,
        allowed: frozenset[str],
        paid: bool = False,
        tier: str | None = None,
        expected_models: Collection[str] = (),
        has_tenants: bool = False,
    ) -> None:
        """`expected_models`, if not empty, are the only models that batches may use."""
        self._checks = Checks(has_tenants=has_tenants)
        self._records = records
        self._expected = expected_models
        self._root = root
        self._dispatcher = dispatcher
        self._writer = writer
        self._max_rows = max_rows
        self._allowed = allowed
        self._paid = paid
        self._tier = tier
        self.runs: dict[str, ActiveBatch] = {}
        self._resting: dict[str, str] = {}
        """Input file ids of batches that stay stopped until the next start, by batch id."""
        self._troubles = Troubles()
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: Counter[BatchStatus] = Counter()

    @property
    def storage_problem(self) -> str | None:
        """A storage problem that blocks all batches, or None."""
        return self._troubles.storage or next((run.unnoted for run in self.runs.values() if run.unnoted), None)

    @property
    def problem(self) -> str | None:
        """A problem that keeps a single batch from progressing, or None."""
        return self._troubles.own or next((run.problem for run in self.runs.values() if run.problem), None)

    def unfinished_rows(self, tenant: str | None = None) -> int:
        """Return the number of rows without a result, of one tenant or all. Batches count once they are validated."""
        return sum(run.rows_left for run in self.runs.values() if tenant in (None, run.tenant))

    def resume(self, goes_on: Callable[[Batch], bool]) -> None:
        """Continue the unfinished batches for which `goes_on` returns True. The other batches stay stopped until the
        next start.
        """
        for record in self._records.open_batches():
            if goes_on(record.batch):
                self._begin(record)
            else:
                self._resting[record.batch.id] = record.batch.input_file_id

    def unfinished(self) -> set[str]:
        return {*self.runs, *self._resting}

    def reads(self, file_id: str) -> bool:
        """True if an unfinished batch reads the file."""
        inputs = (run.batch.input_file_id for run in self.runs.values())
        return file_id in self._resting.values() or file_id in inputs

    def create(self, record: BatchRecord) -> Batch:
        """Record a batch and start it. Raises OSError or StorageError; the batch then does not exist."""
        folder = self._folder(record.batch.id)
        folder.mkdir(parents=True)
        try:
            self._records.add_batch(record)
        except BaseException:
            folder.rmdir()
            raise
        self._begin(record)
        fields = {"file": record.batch.input_file_id, "endpoint": record.batch.endpoint, "tenant": record.tenant}
        log.info("batch created", extra=log_fields(batch=record.batch.id, **fields))
        return record.batch

    def get(self, batch_id: str, tenant: str | None = None) -> BatchRecord | None:
        """Return the batch in its current state, with the counts and usage of its durable results."""
        run = self.runs.get(batch_id)
        if run is None:
            return self._records.batch(batch_id, tenant)
        if tenant not in (None, run.tenant):
            return None
        return BatchRecord(run.counted(), run.options, run.tenant)

    async def counts_known(self, batch_ids: Iterable[str]) -> None:
        """Wait up to COUNT_SECONDS until the rows of these batches have been counted. Counting takes a while after a
        start.
        """
        begun = [self.runs[batch_id] for batch_id in batch_ids if batch_id in self.runs]
        waits = [run.is_known.wait() for run in begun if run.batch.status is not BatchStatus.VALIDATING]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), COUNT_SECONDS)

    def cancel(self, batch_id: str) -> None:
        """Ask a running batch to stop, without waiting for its end."""
        run = self.runs[batch_id]
        if run.batch.status is not BatchStatus.CANCELLING:
            self._save(run, status=BatchStatus.CANCELLING, cancelling_at=_seconds())
            run.stopping = BatchStatus.CANCELLING
            run.changed.set()

    def growing(self) -> dict[str, int | None]:
        """Return the durable bytes of unfinished batches' result files, by path under the server's folder.

        The value is None while the size is unknown.
        """
        paths = [(run, kind) for run in self.runs.values() for kind in ("output", "error")]
        return {str(run.path(kind).relative_to(self._root)): run.durable_bytes(kind) for run, kind in paths}

    async def close(self) -> None:
        """Stop working. Rows without a result are sent after the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_files(self) -> None:
        """Close the result files; the writer must have ended."""
        for run in self.runs.values():
            run.close()

    def _begin(self, record: BatchRecord) -> None:
        folder = self._folder(record.batch.id)
        folder.mkdir(parents=True, exist_ok=True)
        run = self.runs[record.batch.id] = ActiveBatch(record, folder, self._tier)
        task = asyncio.create_task(self._live(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, run: ActiveBatch) -> None:
        try:
            await self._run(run)
        except Exception as error:  # noqa: BLE001  (it is reported, and harms no other batch)
            self._troubles.note(run.batch.id, error)

    async def _run(self, run: ActiveBatch) -> None:
        goes_on = await self._insist(run, self._take_up, or_end=True)
        if goes_on is None:
            await self._insist(run, self._count)
        run.is_known.set()
        if goes_on is False:
            return
        if goes_on:
            await self._work_off(run)
        await self._insist(run, self._finish)

    async def _work_off(self, run: ActiveBatch) -> None:
        self._dispatcher.sources.add(run)
        self._dispatcher.top_up()
        await self._until_done_or_stopped(run)
        if not run.is_done:
            await self._stop(run)
        self._dispatcher.sources.remove(run)

    async def _insist(
        self, run: ActiveBatch, stage: Callable[[ActiveBatch], Awaitable[bool]], *, or_end: bool = False
    ) -> bool | None:
        """Run a stage, and repeat it until it succeeds. Waiting loses no data.

        With `or_end`, return None if the stage still fails after the batch was cancelled or its window ended.
        """
        while True:
            try:
                done = await stage(run)
            except Exception as error:  # noqa: BLE001  (it is reported, and the stage done again)
                self._troubles.note(run.batch.id, error)
            else:
                self._troubles.clear(run.batch.id)
                return done
            # A server's start waits for the counts, which an unreadable batch may never have.
            run.is_known.set()
            if or_end and _is_over(run):
                self._troubles.clear(run.batch.id)
                return None
            await asyncio.sleep(STORAGE_SECONDS)

    async def _take_up(self, run: ActiveBatch) -> bool:
        run.close()
        plan, source = await self._validate(run)
        if plan is None or source is None:
            return False
        upstream_queues = await asyncio.to_thread(
            UpstreamQueues, plan, [upstream.url for upstream in self._dispatcher.upstreams]
        )
        doubts = await asyncio.to_thread(read_doubts, run.sent_path, len(plan)) if self._paid else None
        run.start(plan, upstream_queues, source, self._writer, doubts)
        if run.batch.status is BatchStatus.CANCELLING:
            run.stopping = BatchStatus.CANCELLING
        elif run.batch.status is BatchStatus.VALIDATING:
            found = {"model": plan.model, "request_counts": RequestCounts(total=len(plan))}
            self._save(run, status=BatchStatus.IN_PROGRESS, in_progress_at=_seconds(), **found)
        log.info("batch order", extra=log_fields(batch=run.batch.id, order=plan.order.reason))
        return True

    async def _validate(self, run: ActiveBatch) -> tuple[InputRows | None, Path | None]:
        # The batch was valid once. Failing the batch now would discard its finished rows.
        accepted = run.batch.in_progress_at is not None
        if run.endpoint not in self._allowed:
            if accepted:
                raise BatchChanged(f"{run.endpoint} is no longer allowed here (--allow-endpoint {run.endpoint})")
            self._fail(
                run, [batch_api.LineError("invalid_value", f"{run.endpoint} is not allowed here.", "endpoint")]
            )
            return None, None
        found = self._records.file(run.batch.input_file_id)
        if found is None or not _is_input(found, run):
            problem = f"Cannot find file {run.batch.input_file_id}, or it was not uploaded with purpose 'batch'."
            if accepted:
                raise BatchChanged(problem)
            self._fail(run, [batch_api.LineError("invalid_request", problem, "file_id")])
            return None, None
        path = self._root / found.path
        async with self._checks.passing(run.tenant, found.file.bytes):
            plan = await self._plan(run, path, accepted=accepted)
        if isinstance(plan, list):
            if accepted:
                raise BatchChanged(f"its input file has changed: {plan[0].message}")
            self._fail(run, plan)
            return None, None
        if self._expected and not accepted and plan.model not in (*self._expected, body_changes.DEFAULT_MODEL):
            known = ", ".join(sorted(self._expected))
            told = f"The model '{plan.model}' does not exist here; there are: {known}."
            self._fail(run, [batch_api.LineError("model_not_found", told, "body.model")])
            return None, None
        if (total := run.batch.request_counts.total) not in (0, len(plan)):
            raise BatchChanged(f"its input file has changed: it has {number_of(len(plan), 'row')}, and had {total:,}")
        return plan, path

    async def _plan(self, run: ActiveBatch, path: Path, *, accepted: bool) -> InputRows | list[batch_api.LineError]:
        most = self._max_rows if run.options.max_rows is None else min(self._max_rows, run.options.max_rows)
        if accepted:
            most = sys.maxsize  # the batch was accepted under earlier limits
        upstreams = self._dispatcher.upstreams
        smallest = min((upstream.cache_tokens for upstream in upstreams), default=0) * BYTES_PER_TOKEN
        try:
            return await asyncio.to_thread(
                make_plan,
                path,
                run.endpoint,
                run.recover(),
                most,
                in_order=run.options.in_order,
                accepted=accepted,
                cache_bytes=smallest or None,
                spill=run.folder,
            )
        except OSError:
            raise
        except Exception:
            if accepted:
                raise
            log.exception("the input of batch %s could not be checked", run.batch.id)
            return [batch_api.LineError("internal_error", "The input file could not be checked: an internal error.")]

    async def _count(self, run: ActiveBatch) -> bool:
        await asyncio.to_thread(deque, run.recover(), 0)
        return True

    async def _until_done_or_stopped(self, run: ActiveBatch) -> None:
        while not run.is_done and not run.is_stopping:
            left = (run.batch.expires_at or 0) - clock_now().timestamp()
            if left <= 0:
                run.stopping = BatchStatus.EXPIRED
                return
            run.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), min(left, 3600.0))

    async def _stop(self, run: ActiveBatch) -> None:
        assert run.stopping is not None
        await run.let_go(0.0 if run.stopping is BatchStatus.CANCELLING else STOP_GRACE_SECONDS)
        run.end_rest(*NOT_RUN[run.stopping])
        while not run.is_done:
            run.changed.clear()
            await run.changed.wait()

    async def _finish(self, run: ActiveBatch) -> bool:
        if run.batch.status is not BatchStatus.CANCELLING:
            self._save(run, status=BatchStatus.FINALIZING, finalizing_at=_seconds())
        names = {}
        for kind, rows in (("output", run.tally.completed), ("error", run.tally.failed)):
            if rows:
                names[f"{kind}_file_id"] = self._publish(run, kind)
        end = {
            BatchStatus.CANCELLING: {"status": BatchStatus.CANCELLED, "cancelled_at": _seconds()},
            BatchStatus.EXPIRED: {"status": BatchStatus.EXPIRED, "expired_at": _seconds()},
            None: {"status": BatchStatus.COMPLETED, "completed_at": _seconds()},
        }[run.stopping]
        run.batch = run.counted()
        self._save(run, **names, **end)
        run.close()
        del self.runs[run.batch.id]
        return True

    def _publish(self, run: ActiveBatch, kind: str) -> str:
        path = run.path(kind)
        # The file's id derives from the batch's id, so that a repeated finish names the same files.
        created, kept = _seconds(), run.options.output_seconds
        file = batch_api.File(
            id=f"file-{run.batch.id.removeprefix('batch_')}-{kind}",
            bytes=path.stat().st_size,
            created_at=created,
            filename=f"{run.batch.id}_{kind}.jsonl",
            purpose="batch_output",
            expires_at=None if kept is None else created + kept,
        )
        self._records.add_file(file, str(path.relative_to(self._root)), run.tenant)
        return file.id

    def _fail(self, run: ActiveBatch, errors: list[batch_api.LineError]) -> None:
        if run.batch.status is BatchStatus.CANCELLING:
            # After a cancellation, the errors of the input do not matter any more.
            self._save(run, status=BatchStatus.CANCELLED, cancelled_at=_seconds())
        else:
            self._save(run, status=BatchStatus.FAILED, failed_at=_seconds(), errors=LineErrors(errors))
        del self.runs[run.batch.id]

    def _folder(self, batch_id: str) -> Path:
        return self._root / "batches" / batch_id

    def _save(self, run: ActiveBatch, **changes: Any) -> None:
        # Record the state first: a state that the database refused must not be shown.
        batch = msgspec.structs.replace(run.batch, **changes)
        self._records.save_batch(batch)
        moved = batch.status is not run.batch.status
        run.batch = batch
        if moved:
            self._tell(run)

    def _tell(self, run: ActiveBatch) -> None:
        batch = run.counted()
        if batch.status.is_final:
            self.ended[batch.status] += 1
        counts = batch.request_counts
        rows = {"total": counts.total, "completed": counts.completed, "failed": counts.failed}
        log.info("batch %s", batch.status.value, extra=log_fields(batch=batch.id, tenant=run.tenant, **rows))


def _is_over(run: ActiveBatch) -> bool:
    """True if a batch was cancelled or its window has ended. Also sets its `stopping`."""
    if run.batch.status is BatchStatus.CANCELLING:
        run.stopping = BatchStatus.CANCELLING
    if not run.is_stopping and (run.batch.expires_at or 0) <= clock_now().timestamp():
        run.stopping = BatchStatus.EXPIRED
    return run.is_stopping


def _is_input(found: FileRecord, run: ActiveBatch) -> bool:
    """True if a file may be a batch's input. A file that expired before the batch was created is not accepted."""
    expires_at = found.file.expires_at
    is_there = expires_at is None or expires_at > run.batch.created_at
    return is_there and found.file.purpose == "batch" and found.tenant == run.tenant


def _seconds() -> int:
    return int(clock_now().timestamp())
