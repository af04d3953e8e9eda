"""The life of a batch: validating → in_progress → finalizing → its end, and the way back in after a kill.

A batch's record names its state; which rows are done is read from its result files. So every step may be cut off
anywhere: the next start reads record and files, and goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from orchestrator import wire
from orchestrator.clock import now as clock_now
from orchestrator.server import results
from orchestrator.server.fanout import FanOut, Source, Work
from orchestrator.server.plan import Plan, make_plan
from orchestrator.server.records import Records
from orchestrator.server.retry import Action, Verdict
from orchestrator.server.upstreams import Reply, Upstream
from orchestrator.wire import Batch, BatchStatus, BatchUsage, ErrorObject, LineErrors, RequestCounts, id_key

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 10.0
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
NO_USAGE = BatchUsage()
_decode_request = msgspec.json.Decoder(wire.RequestLine).decode
_encode = msgspec.json.encode


@dataclass(slots=True)
class Tally:
    """What the result files of a batch hold, counted as rows become durable."""

    completed: int = 0
    failed: int = 0
    usage: BatchUsage = NO_USAGE
    upstream_seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Rows with a result."""
        return self.completed + self.failed

    def add(self, *, succeeded: bool, usage: BatchUsage, seconds: float) -> None:
        """One more row."""
        if succeeded:
            self.completed += 1
            self.usage = wire.add_usage(self.usage, usage)
        else:
            self.failed += 1
        self.upstream_seconds += seconds


class Run(Source):
    """A batch that is being worked on: its rows, its result files, and what has become of them."""

    def __init__(self, batch: Batch, folder: Path, *, provenance: bool) -> None:
        self.batch = batch
        self.folder = folder
        self.endpoint = batch.endpoint
        self._inflight: set[asyncio.Task[None]] = set()
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.stopping: BatchStatus | None = None
        self._provenance = provenance
        self._plan: Plan | None = None
        self._next = 0
        self._again: deque[Work] = deque()

    def recover(self) -> set[int]:
        """Count what the result files hold, after mending them; gives the keys of the rows that are done."""
        self.tally = Tally()
        done: set[int] = set()
        for kind in ("output", "error"):
            for row in results.recover(self.path(kind)):
                done.add(id_key(row.custom_id or ""))
                body = row.response.body if row.response else wire.NO_BODY
                self.tally.add(
                    succeeded=kind == "output",
                    usage=wire.read_answer(body)[0] if kind == "output" else NO_USAGE,
                    seconds=row.orch.upstream_seconds if row.orch else 0.0,
                )
        return done

    def start(self, plan: Plan, input_path: Path, writer: results.Writer) -> None:
        """Take up the rows of a plan that are not done."""
        self._plan, self._writer = plan, writer
        self._input = os.open(input_path, os.O_RDONLY)
        self._files = {kind: results.ResultFile(self.path(kind)) for kind in ("output", "error")}

    def close(self) -> None:
        """Close the files."""
        if self._plan is not None:
            os.close(self._input)
            for file in self._files.values():
                file.close()
            self._plan = None

    def path(self, kind: str) -> Path:
        """The result file of a kind, `output` or `error`."""
        return self.folder / f"{kind}.jsonl"

    @property
    def plan(self) -> Plan:
        """The plan; only between `start` and `close`."""
        assert self._plan is not None
        return self._plan

    @property
    def is_done(self) -> bool:
        """Whether every row has its durable result."""
        return self._plan is not None and self.tally.rows >= len(self._plan)

    @property
    def is_stopping(self) -> bool:
        """Whether rows that have no result yet will be given none."""
        return self.stopping is not None

    def take(self) -> Work | None:
        if self._plan is None or self.stopping is not None:
            return None
        if self._again:
            return self._again.popleft()
        done = self._plan.done
        while self._next < len(done):
            index = self._next
            self._next += 1
            if not done[index]:
                return Work(self, index)
        return None

    def give_back(self, work: Work) -> None:
        self._again.append(work)

    def enter(self, task: asyncio.Task[None]) -> None:
        self._inflight.add(task)

    def leave(self, task: asyncio.Task[None]) -> None:
        self._inflight.discard(task)
        if self.stopping is not None:
            self.changed.set()

    async def let_go(self, grace: float) -> None:
        """Wait `grace` seconds for the rows in flight to end, then take them back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await self._none_in_flight()
        for task in self._inflight:
            task.cancel()
        await self._none_in_flight()

    async def _none_in_flight(self) -> None:
        while self._inflight:
            self.changed.clear()
            await self.changed.wait()

    def durable_bytes(self, kind: str) -> int:
        """How much of a result file is durable now."""
        return self._files[kind].durable if self._plan is not None else 0

    def _line(self, index: int) -> wire.RequestLine:
        plan = self.plan
        return _decode_request(os.pread(self._input, plan.lengths[index], plan.offsets[index]))

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        body = self._line(work.index).body
        if self.batch.model == "default" and upstream.models:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            fields["model"] = msgspec.Raw(_encode(upstream.models[0]))
            return _encode(fields)
        return bytes(body)

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: Verdict, latency: float) -> None:
        if self.stopping is not None and self.plan.done[work.index]:
            return
        orch = (
            wire.Provenance(upstream.url, round(latency * 1000), round(work.upstream_seconds, 6), work.attempts)
            if self._provenance
            else None
        )
        usage, kind = NO_USAGE, "error"
        if verdict.action is Action.GIVE_UP:
            line = error_line(self._id(work.index), "upstream_error", verdict.reason, orch)
        else:
            body = reply.body if reply.status < 300 else error_body(reply)
            if reply.status < 300:
                kind, usage = "output", wire.read_answer(body)[0]
            line = answer_line(self._id(work.index), reply.status, body, orch)
        self._put(work.index, kind, line, usage, work.upstream_seconds)

    def end_rest(self, code: str, message: str) -> None:
        """Give every row without a result an error row."""
        for index, done in enumerate(self.plan.done):
            if not done:
                self._put(index, "error", error_line(self._id(index), code, message, None), NO_USAGE, 0.0)

    def _id(self, index: int) -> str:
        return str(self._line(index).custom_id)

    def _put(self, index: int, kind: str, line: bytes, usage: BatchUsage, seconds: float) -> None:
        self.plan.done[index] = 1

        def durable() -> None:
            self.tally.add(succeeded=kind == "output", usage=usage, seconds=seconds)
            if self.is_done:
                self.changed.set()

        self._writer.put(self._files[kind], line, durable)


def answer_line(custom_id: str, status: int, body: bytes, orch: wire.Provenance | None) -> bytes:
    """A result line around an answer whose bytes are passed on as they came."""
    # Newlines in JSON stand between tokens only, so a space in their place changes nothing.
    flat = body.replace(b"\n", b" ").replace(b"\r", b" ") if b"\n" in body or b"\r" in body else body
    request_id = os.urandom(12).hex()
    return b'{"id":"batch_req_%b","custom_id":%b,"response":{"status_code":%d,"request_id":"%b","body":%b},%b}' % (
        request_id.encode(),
        _encode(custom_id),
        status,
        request_id.encode(),
        flat.strip(),
        b'"error":null' + _extension(orch),
    )


def error_line(custom_id: str, code: str, message: str, orch: wire.Provenance | None) -> bytes:
    """The result line of a row that has no answer."""
    return b'{"id":"batch_req_%b","custom_id":%b,"response":null,"error":%b%b}' % (
        os.urandom(12).hex().encode(),
        _encode(custom_id),
        _encode({"code": code, "message": message}),
        _extension(orch),
    )


def _extension(orch: wire.Provenance | None) -> bytes:
    return b"" if orch is None else b',"orch":' + _encode(orch)


class _ErrorIn(msgspec.Struct):
    message: Any = None
    type: Any = None
    param: Any = None
    code: Any = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorIn | str | None = None


def error_body(reply: Reply) -> bytes:
    """An upstream's error body in OpenAI's form: vLLM's integer codes and bodies that are no JSON are translated."""
    found: _ErrorIn | str | None = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(reply.body, type=_ErrorBody).error
    if not isinstance(found, _ErrorIn):
        found = _ErrorIn(message=found or f"The upstream answered with status {reply.status} and no JSON error.")
    message = str(found.message)
    code = found.code if isinstance(found.code, str) else None
    if code is None and "maximum context length" in message:
        code = "context_length_exceeded"
    kind = found.type if isinstance(found.type, str) else "invalid_request_error"
    param = found.param if isinstance(found.param, str) else None
    return _encode({"error": ErrorObject(message, kind, param, code)})


class Batches:
    """All batches of a server: creates, resumes, stops and ends them, soonest deadline first."""

    def __init__(
        self, records: Records, root: Path, fanout: FanOut, writer: results.Writer, *, max_rows: int
    ) -> None:
        self._records = records
        self._root = root
        self._fanout = fanout
        self._writer = writer
        self._max_rows = max_rows
        self.runs: dict[str, Run] = {}
        self.problem: str | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Take up every batch that is not at its end."""
        for batch, provenance in self._records.open_batches():
            self._begin(batch, provenance=provenance)

    def create(self, batch: Batch, *, provenance: bool) -> Batch:
        """Record a batch and begin it."""
        self._records.add_batch(batch, provenance=provenance)
        self._begin(batch, provenance=provenance)
        return batch

    def get(self, batch_id: str) -> Batch | None:
        """The batch as it is now; counts and usage are those of its durable results."""
        run = self.runs.get(batch_id)
        return self._records.batch(batch_id) if run is None else _counted(run)

    def cancel(self, batch_id: str) -> None:
        """Ask a running batch to stop; the call returns at once."""
        run = self.runs[batch_id]
        if run.batch.status not in (BatchStatus.CANCELLING, BatchStatus.FINALIZING):
            self._save(run, status=BatchStatus.CANCELLING, cancelling_at=_seconds())
            run.stopping = BatchStatus.CANCELLING
            run.changed.set()

    async def close(self) -> None:
        """Stop working; what has no result yet runs at the next start."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close_files(self) -> None:
        """Close the result files, once the writer has ended."""
        for run in self.runs.values():
            run.close()

    def _begin(self, batch: Batch, *, provenance: bool) -> None:
        folder = self._root / "batches" / batch.id
        folder.mkdir(parents=True, exist_ok=True)
        run = self.runs[batch.id] = Run(batch, folder, provenance=provenance)
        task = asyncio.create_task(self._live(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self, run: Run) -> None:
        try:
            await self._run(run)
        except asyncio.CancelledError:
            raise
        except OSError as error:
            log.error("batch %s stands still: %s", run.batch.id, error)
            self.problem = f"batch {run.batch.id} stands still: {error.strerror}"
        except Exception:
            log.exception("batch %s stands still", run.batch.id)
            self.problem = f"batch {run.batch.id} stands still: an internal error; see the log"

    async def _run(self, run: Run) -> None:
        plan, source = await self._validate(run)
        if plan is None or source is None:
            return
        run.start(plan, source, self._writer)
        if run.batch.status is BatchStatus.CANCELLING:
            run.stopping = BatchStatus.CANCELLING
        elif run.batch.status is BatchStatus.VALIDATING:
            self._save(run, status=BatchStatus.IN_PROGRESS, in_progress_at=_seconds(), model=plan.model)
        self._enlist(run)
        await self._until_done_or_stopped(run)
        if not run.is_done:
            await self._stop(run)
        self._fanout.sources.remove(run)
        self._finish(run)

    async def _validate(self, run: Run) -> tuple[Plan | None, Path | None]:
        found = self._records.file(run.batch.input_file_id)
        if found is None or found[0].purpose != "batch":
            problem = f"Cannot find file {run.batch.input_file_id}, or it was not uploaded with purpose 'batch'."
            self._fail(run, [wire.LineError("invalid_request", problem, "file_id")])
            return None, None
        path = self._root / found[1]
        done = await asyncio.to_thread(run.recover)
        plan = await asyncio.to_thread(make_plan, path, run.endpoint, done, self._max_rows)
        if isinstance(plan, list):
            self._fail(run, plan)
            return None, None
        return plan, path

    def _enlist(self, run: Run) -> None:
        self._fanout.sources.append(run)
        # Soonest deadline first; the server takes rows of a later batch only while no earlier one has any.
        order = {id(r): (r.batch.expires_at or 0, r.batch.created_at) for r in self.runs.values()}
        self._fanout.sources.sort(key=lambda source: order[id(source)])
        self._fanout.top_up()

    async def _until_done_or_stopped(self, run: Run) -> None:
        while not run.is_done and not run.is_stopping:
            left = (run.batch.expires_at or 0) - clock_now().timestamp()
            if left <= 0:
                run.stopping = BatchStatus.EXPIRED
                return
            run.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.changed.wait(), min(left, 3600.0))

    async def _stop(self, run: Run) -> None:
        """Let what is in flight end for a while, take back the rest, and give it error rows."""
        assert run.stopping is not None
        await run.let_go(0.0 if run.stopping is BatchStatus.CANCELLING else STOP_GRACE_SECONDS)
        run.end_rest(*NOT_RUN[run.stopping])
        while not run.is_done:
            run.changed.clear()
            await run.changed.wait()

    def _finish(self, run: Run) -> None:
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
        run.batch = _counted(run)
        self._save(run, **names, **end)
        run.close()
        del self.runs[run.batch.id]

    def _publish(self, run: Run, kind: str) -> str:
        path = run.path(kind)
        # The id follows from the batch's, so that a finish that is cut off and done again names the same files.
        file = wire.File(
            id=f"file-{run.batch.id.removeprefix('batch_')}-{kind}",
            bytes=path.stat().st_size,
            created_at=_seconds(),
            filename=f"{run.batch.id}_{kind}.jsonl",
            purpose="batch_output",
        )
        self._records.add_file(file, str(path.relative_to(self._root)))
        return file.id

    def _fail(self, run: Run, errors: list[wire.LineError]) -> None:
        self._save(run, status=BatchStatus.FAILED, failed_at=_seconds(), errors=LineErrors(errors))
        del self.runs[run.batch.id]

    def _save(self, run: Run, **changes: Any) -> None:
        run.batch = msgspec.structs.replace(run.batch, **changes)
        self._records.save_batch(run.batch)


def _counted(run: Run) -> Batch:
    if run.batch.status is BatchStatus.VALIDATING:
        return run.batch
    tally = run.tally
    total = len(run.plan) if run._plan is not None else tally.rows
    return msgspec.structs.replace(
        run.batch, request_counts=RequestCounts(total, tally.completed, tally.failed), usage=tally.usage
    )


def _seconds() -> int:
    return int(clock_now().timestamp())
