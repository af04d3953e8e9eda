"""A batch in progress: its waiting rows, its finished rows, and the contents of its result files."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

import msgspec

from orchestrator.core import answers, batch_api
from orchestrator.core.answers import NO_TOKENS, TokenCounts
from orchestrator.core.batch_api import BatchStatus, RequestCounts
from orchestrator.core.errors import StorageError
from orchestrator.core.request_lines import id_key
from orchestrator.server.dispatch import body_changes, packing, results, torn_result_lines
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.in_flight import UNREADABLE_SECONDS, RowSource, Work
from orchestrator.server.dispatch.inputs import Input, Unreadable
from orchestrator.server.dispatch.outcomes import outcome_of
from orchestrator.server.dispatch.payload import Content
from orchestrator.server.dispatch.plan import InputRows
from orchestrator.server.dispatch.request_header import InputLine
from orchestrator.server.dispatch.result_lines import error_line, unfinished_line
from orchestrator.server.dispatch.retry import Action, RetryVerdict
from orchestrator.server.dispatch.send_log import FILE_NAME, SendLog
from orchestrator.server.dispatch.tally import Note, Tally, note_of
from orchestrator.server.dispatch.upstream_queue import UpstreamQueues
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.memory_limits import RoomShare
from orchestrator.server.records import BatchRecord

MANY_MISSES = 3
SHORT_LINE = 4096
BATCH_PRIORITY = 100
"""vLLM priority of batch rows. Lower numbers are served first; interactive requests have 0."""


class ActiveBatch(RowSource):
    """A batch's rows and result files. `batch` is the last recorded state.

    `tier` is the service tier for rows that do not set their own.
    """

    def __init__(self, record: BatchRecord, folder: Path, tier: str | None = None) -> None:
        self.batch = record.batch
        self.options = record.options
        self.batch_id, self.tenant = record.batch.id, record.tenant
        self.folder = folder
        self.endpoint = record.batch.endpoint
        self.deadline = float(record.batch.expires_at or 0)
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.is_known = asyncio.Event()
        """Set once the result files have been counted."""
        self.stopping: BatchStatus | None = None
        self._unreadable: dict[int, str] = {}
        self._misses = 0
        self._failure: str | None = None
        self.unnoted: str | None = None
        """Reason why the send log cannot be written, or None. This is a disk error, so it affects all batches."""
        self._held_until: float | None = None
        self._inflight: dict[asyncio.Task[None], tuple[Work, Upstream, float]] = {}
        self._taken_back: dict[int, float] = {}
        self._input: Input | None = None
        self.plan: InputRows
        """The batch's rows. Set only between `start` and `close`."""
        self._again: deque[Work] = deque()
        self._last: deque[Work] = deque()
        """Rows that could not be read. They are retried after all other rows."""
        self._tier = tier
        self._sent: SendLog | None = None
        """Log of the rows sent to upstreams that bill each request; None if there are no such upstreams."""

    def recover(self) -> Iterator[int]:
        """Repair and count the result files; yield the `id_key` of each finished row."""
        self.tally = Tally()
        for kind in ("output", "error"):
            for row in torn_result_lines.recover(self.path(kind)):
                if kind == "error" and torn_result_lines.is_expired(row):
                    self.stopping = BatchStatus.EXPIRED
                self.tally.add([note_of(row, succeeded=kind == "output")])
                yield id_key(row.custom_id or "")

    def start(
        self, plan: InputRows, upstream_queues: UpstreamQueues, input_path: Path, writer: results.Writer,
        doubts: bytearray | None,
    ) -> None:  # fmt: skip
        """Start on the unfinished rows of a plan. If this raises OSError, no file stays open.

        `doubts` comes from the send log, and is None if there is no log.
        """
        self._writer = writer
        self._upstream_queues = upstream_queues
        self._files = {}
        with contextlib.ExitStack() as opened:
            for kind in ("output", "error"):
                self._files[kind] = results.ResultFile(self.path(kind), self._durable)
                opened.callback(self._files[kind].close)
            self._sent = None if doubts is None else SendLog(self.sent_path, doubts)
            if self._sent is not None:
                opened.callback(self._sent.close)
            self._input = Input(input_path, plan)
            opened.pop_all()
        self.plan = plan

    def close(self) -> None:
        """Close the files; `start` may open them again."""
        if self._input is not None:
            self._input.close()
            for file in self._files.values():
                file.close()
            if self._sent is not None:
                self._sent.close()
            self._input = None
            del self.plan

    def path(self, kind: str) -> Path:
        return self.folder / f"{kind}.jsonl"

    @property
    def sent_path(self) -> Path:
        return self.folder / FILE_NAME

    @property
    def _open_input(self) -> Input:
        assert self._input is not None
        return self._input

    @property
    def model(self) -> str | None:
        return self.batch.model

    @property
    def problem(self) -> str | None:
        """Reason why no row of this batch is sent, or None. Problems that affect other batches too are left out."""
        for index, why in self._unreadable.items():
            return f"batch {self.batch.id} waits: row {index + 1:,} of its input file cannot be read: {why}"
        return None if self._failure is None else f"batch {self.batch.id} waits: {self._failure}"

    @property
    def row_order(self) -> str | None:
        """The order of the rows and the reason for it; None before the input has been read."""
        return None if self._input is None else self.plan.order.reason

    @property
    def rows_left(self) -> int:
        """Number of rows without a durable result; 0 before the input has been read."""
        return 0 if self._input is None else len(self.plan) - self.tally.rows

    @property
    def in_flight(self) -> int:
        return len(self._inflight)

    @property
    def is_done(self) -> bool:
        return self._input is not None and self.tally.rows >= len(self.plan)

    @property
    def is_stopping(self) -> bool:
        """True if rows without a result will not be sent any more."""
        return self.stopping is not None

    def counted(self) -> batch_api.Batch:
        """Return the batch with the counts and usage of its durable results."""
        if self.batch.status is BatchStatus.VALIDATING:
            return self.batch
        tally = self.tally
        known = max(self.batch.request_counts.total, tally.rows)
        total = known if self._input is None else len(self.plan)
        counts = RequestCounts(total, tally.completed, tally.failed)
        return msgspec.structs.replace(self.batch, request_counts=counts, usage=answers.usage_of(tally.tokens))

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        if self._input is None or self.stopping is not None:
            return None
        if self._held_until is not None and monotonic() < self._held_until:
            return None
        work = self._next(upstream, elsewhere)
        if work is None or work.attempts or work.packed:
            return work
        if self.endpoint not in packing.ENDPOINTS or not upstream.takes_packs:
            return work
        return self._packed(work, upstream)

    def _next(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        if self._again:
            if not (elsewhere and self._again[0].failed_on is upstream):
                return self._again.popleft()
            # The row failed on this upstream: leave the row to another upstream, and take the next row.
            self._again.rotate(-1)
        index = self._upstream_queues.take(upstream.url)
        if index is None:
            left = self._again or self._last
            return left.popleft() if left else None
        return Work(self, index, self.plan.size(index))

    def _packed(self, first: Work, upstream: Upstream) -> Work:
        custom_id, row = self._packable(first.index)
        if row is None:
            return first
        pack, indexes, ids = packing.Pack(row), [first.index], [custom_id]
        while (index := self._upstream_queues.take(upstream.url)) is not None:
            custom_id, row = self._packable(index)
            if row is None or not pack.add(row):
                self._again.append(Work(self, index, self.plan.size(index)))
                break
            indexes.append(index)
            ids.append(custom_id)
            first.size += self.plan.size(index)
        if len(indexes) > 1:
            first.pack, first.packed, first.packed_ids = pack, tuple(indexes), tuple(ids)
        return first

    def _packable(self, index: int) -> tuple[msgspec.Raw, packing.Packable | None]:
        try:
            line = self._line(index)
        except (StorageError, body_changes.BodyError):
            return batch_api.NO_BODY, None
        return line.custom_id.copy(), packing.read(self.endpoint, line.body)

    def give_back(self, work: Work) -> None:
        (self._last if work.index in self._unreadable else self._again).append(work)

    def put_back(self, work: Work) -> None:
        self._again.appendleft(work)

    def unpack(self, work: Work) -> None:
        share = work.upstream_seconds / len(work.packed)
        for index in work.packed:
            single = Work(self, index, self.plan.size(index))
            single.attempts, single.upstream_seconds = work.attempts, share
            self._again.append(single)

    def tokens(self, work: Work) -> int:
        if not work.packed:
            with contextlib.suppress(StorageError, body_changes.BodyError):
                return body_changes.likely_tokens(self._line(work.index).body)
        return work.size // body_changes.BYTES_PER_TOKEN

    def leaves(self, work: Work) -> None:
        if self._sent is None:
            return
        try:
            self._sent.leave(work.packed or (work.index,))
        except OSError as error:
            self._held_until = monotonic() + UNREADABLE_SECONDS
            self.unnoted = f"rows of {self.batch.id} cannot be noted as sent: {error.strerror}"
            raise StorageError(self.unnoted) from error
        self.unnoted = None

    def came_back(self, work: Work) -> None:
        if self._sent is not None:
            self._sent.take_back(work.packed or (work.index,))

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        self._inflight[task] = (work, upstream, began)

    def leave(self, task: asyncio.Task[None]) -> None:
        work, _, _ = self._inflight.pop(task)
        if self.stopping is not None:
            rows = work.packed or (work.index,)
            self._taken_back.update(dict.fromkeys(rows, work.upstream_seconds / len(rows)))
            self.changed.set()

    def upstream_seconds(self) -> float:
        """Return the batch's share of its upstreams' time so far, including rows in flight."""
        out = sum(work.upstream_seconds + upstream.so_far(began) for work, upstream, began in self._inflight.values())
        return self.tally.upstream_seconds + out

    async def let_go(self, grace: float) -> None:
        """Wait up to `grace` seconds for the rows in flight to end, then cancel them."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_in_flight(), grace)
        for task in self._inflight:
            task.cancel()
        await self._none_in_flight()

    async def _none_in_flight(self) -> None:
        while self._inflight:
            self.changed.clear()
            await self.changed.wait()

    def durable_bytes(self, kind: str) -> int | None:
        """Return the durable bytes of a result file; None before it has been opened."""
        return None if self._input is None else self._files[kind].durable

    def hold(self, reason: str) -> None:
        self._failure, self._held_until = reason, monotonic() + UNREADABLE_SECONDS

    def _line(self, index: int, read: InputLine | None = None) -> InputLine:
        """Return `read` if given, otherwise the row's line. Raises StorageError if the line cannot be read now,
        BodyError if it must not be sent.
        """
        try:
            assert self._input is not None
            line = read or self._input.line(index)
        except Unreadable as error:
            self._unreadable[index] = str(error)
            self._misses += 1
            if self._misses >= MANY_MISSES:
                # The whole file is unreadable: trying all other rows now would not help.
                self._held_until = monotonic() + UNREADABLE_SECONDS
            raise StorageError(str(self.problem)) from error
        if self._unreadable or self._failure is not None:
            self._unreadable.pop(index, None)
            self._misses, self._failure, self._held_until = 0, None, None
        return line

    async def read_ahead(self, work: Work) -> None:
        if work.pack is None:
            with contextlib.suppress(Exception):
                work.line = await asyncio.to_thread(self._open_input.line, work.index)

    def request_body(self, work: Work, upstream: Upstream) -> Content:
        if work.pack is not None:
            body: bytes | msgspec.Raw = work.pack.body()
        else:
            line = self._line(work.index, work.line)
            work.line = None
            # A slice of a line would keep the whole line in memory.
            work.custom_id, body = (line.custom_id if work.size <= SHORT_LINE else line.custom_id.copy()), line.body
        is_vllm = upstream.gauges is not None
        return body_changes.prepare(
            body,
            endpoint=self.endpoint,
            vllm=is_vllm,
            model=upstream.served.sent_for(self.batch.model),
            asked=self.batch.model,
            priority=BATCH_PRIORITY if is_vllm and upstream.takes_priority else None,
            tier=self._tier,
        )

    def refuse(self, work: Work, fault: batch_api.LineError) -> None:
        rows = work.packed or (work.index,)
        for index in (row for row in rows if not self.plan.done[row]):
            line = error_line(self._open_input.custom_id(index), fault.code, fault.message, None)
            self._put(index, "error", line, NO_TOKENS, work.upstream_seconds / len(rows))

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: RetryVerdict, latency: float) -> bool:
        if work.pack is None:
            assert work.custom_id is not None, "read with the row's body"
            self._settle(work, work.index, work.custom_id, upstream, reply, verdict, latency)
            return True
        if verdict.action is not Action.KEEP or reply.status >= 300:
            return False
        try:
            answers = work.pack.split(reply.body)
        except packing.PackError:
            upstream.takes_packs = False
            return False
        for index, custom_id, answer in zip(work.packed, work.packed_ids, answers, strict=True):
            alone = Reply(reply.end, reply.status, answer)
            self._settle(work, index, custom_id, upstream, alone, verdict, latency)
        return True

    def _settle(
        self, work: Work, index: int, custom_id: msgspec.Raw, upstream: Upstream, reply: Reply, verdict: RetryVerdict,
        latency: float,
    ) -> None:  # fmt: skip
        if self.plan.done[index]:
            return  # one row, one outcome
        seconds, orch = work.upstream_seconds / (len(work.packed) or 1), None
        if self._sent is not None and reply.status < 300 and verdict.action is Action.KEEP:
            self._sent.answered(index)
        if self.options.provenance:
            took, doubts, is_full = round(latency * 1000), self._doubts(index), upstream.served.is_full(reply.tokens)
            orch = batch_api.Provenance(upstream.shown, took, round(seconds, 6), work.attempts, doubts, is_full)
        upstream.stats.latencies.observe(latency)
        place = None if work.packed else reply.place
        kind, line, tokens = outcome_of(custom_id, reply, verdict, orch, upstream.stats)
        self._put(index, kind, line, tokens, seconds, place)

    def end_rest(self, code: str, message: str) -> None:
        """Write an error row for every row without a result."""
        for index, done in enumerate(self.plan.done):
            if not done:
                # A cancelled row may still have used the upstream: its time counts.
                seconds, doubts = self._taken_back.get(index, 0.0), self._doubts(index)
                line = unfinished_line(
                    self._open_input.custom_id(index), code, message, seconds, doubts, self.options
                )
                self._put(index, "error", line, NO_TOKENS, seconds)

    def _doubts(self, index: int) -> int:
        return 0 if self._sent is None else self._sent.doubts(index)

    def _put(
        self, index: int, kind: str, line: results.Line, tokens: TokenCounts, seconds: float,
        place: RoomShare | None = None,
    ) -> None:  # fmt: skip
        self.plan.done[index] = 1
        self._writer.put(self._files[kind], line, Note(kind == "output", tokens, seconds), place)

    def _durable(self, notes: Sequence[Note]) -> None:
        self.tally.add(notes)
        if self.is_done:
            self.changed.set()
