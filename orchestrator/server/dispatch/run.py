"""A batch that is being worked on: which rows wait, which are done, and what its result files hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

import msgspec

from orchestrator import wire
from orchestrator.errors import StorageError
from orchestrator.server.dispatch import bodies, packing, results
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.lanes import Lanes
from orchestrator.server.dispatch.plan import Plan
from orchestrator.server.dispatch.resultlines import answer_line, error_body, error_line
from orchestrator.server.dispatch.retry import Action, Verdict
from orchestrator.server.dispatch.sent import FILE_NAME, Sent
from orchestrator.server.dispatch.tally import Note, Tally
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.dispatch.work import UNREADABLE_SECONDS, Source, Work
from orchestrator.server.records import BatchRecord
from orchestrator.wire import NO_JSON, NO_TOKENS, BatchStatus, RequestCounts, TokenCounts, id_key

IN_DOUBT = "An attempt at it had left before, so it may be billed all the same."
BATCH_PRIORITY = 100
"""vLLM serves lower numbers first; people who wait have 0."""


class _Line(msgspec.Struct):
    """A request line that was checked before: its id goes into the result byte for byte, its body to the upstream."""

    custom_id: msgspec.Raw
    body: msgspec.Raw


_decode_line = msgspec.json.Decoder(_Line).decode


class Run(Source):
    """A batch's rows, its result files, and what has become of them. `batch` is as it was recorded last.

    `tier` is the service tier of rows that name none.
    """

    def __init__(self, record: BatchRecord, folder: Path, tier: str | None = None) -> None:
        self.batch = record.batch
        self.options = record.options
        self.tenant = record.tenant
        self.folder = folder
        self.endpoint = record.batch.endpoint
        self.deadline = float(record.batch.expires_at or 0)
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.is_known = asyncio.Event()
        """Set once the input has been read, and with it what the result files hold."""
        self.stopping: BatchStatus | None = None
        self.problem: str | None = None
        """Why rows cannot be read, for people; None once one could be."""
        self._held_until: float | None = None
        self._inflight: dict[asyncio.Task[None], tuple[Work, Upstream, float]] = {}
        self._taken_back: dict[int, float] = {}
        self._plan: Plan | None = None
        self._again: deque[Work] = deque()
        self._tier = tier
        self._sent: Sent | None = None
        """What left for upstreams that bill each request."""

    def recover(self) -> Iterator[int]:
        """Count what the result files hold, after mending them; gives the `id_key` of each row that is done."""
        self.tally = Tally()
        for kind in ("output", "error"):
            for row in results.recover(self.path(kind)):
                if kind == "error" and results.is_expired(row):
                    self.stopping = BatchStatus.EXPIRED
                body = row.response.body if row.response else wire.NO_BODY
                tokens = wire.answer_tokens(body) if kind == "output" else NO_TOKENS
                self.tally.add([Note(kind == "output", tokens, row.orch.upstream_seconds if row.orch else 0.0)])
                yield id_key(row.custom_id or "")

    def start(
        self, plan: Plan, lanes: Lanes, input_path: Path, writer: results.Writer, doubts: bytearray | None
    ) -> None:
        """Take up the rows of a plan that are not done. Raises OSError, and then nothing is open.

        `doubts` is the account of what was sent before; None where none is kept.
        """
        self._writer = writer
        self._lanes = lanes
        self._files = {}
        with contextlib.ExitStack() as opened:
            for kind in ("output", "error"):
                self._files[kind] = results.ResultFile(self.path(kind), self._durable)
                opened.callback(self._files[kind].close)
            self._sent = None if doubts is None else Sent(self.sent_path, doubts)
            if self._sent is not None:
                opened.callback(self._sent.close)
            self._input = os.open(input_path, os.O_RDONLY)
            opened.pop_all()
        self._plan = plan

    def close(self) -> None:
        """Close the files; `start` may open them again."""
        if self._plan is not None:
            os.close(self._input)
            for file in self._files.values():
                file.close()
            if self._sent is not None:
                self._sent.close()
            self._plan = None

    def path(self, kind: str) -> Path:
        """The result file of a kind, `output` or `error`."""
        return self.folder / f"{kind}.jsonl"

    @property
    def sent_path(self) -> Path:
        """The account of what was sent."""
        return self.folder / FILE_NAME

    @property
    def plan(self) -> Plan:
        """The plan; only between `start` and `close`."""
        assert self._plan is not None
        return self._plan

    @property
    def model(self) -> str | None:
        return self.batch.model

    @property
    def row_order(self) -> str | None:
        """In which order rows go out and why, for people; None before the input has been read."""
        return None if self._plan is None else self._plan.order.reason

    @property
    def rows_left(self) -> int:
        """How many rows have no durable result yet; 0 before the input has been read."""
        return 0 if self._plan is None else len(self._plan) - self.tally.rows

    @property
    def in_flight(self) -> int:
        """How many requests of it are out."""
        return len(self._inflight)

    @property
    def is_done(self) -> bool:
        """Whether every row has its durable result."""
        return self._plan is not None and self.tally.rows >= len(self._plan)

    @property
    def is_stopping(self) -> bool:
        """Whether rows that have no result yet will be given none."""
        return self.stopping is not None

    def counted(self) -> wire.Batch:
        """The batch with the counts and usage of its durable results."""
        if self.batch.status is BatchStatus.VALIDATING:
            return self.batch
        tally = self.tally
        total = tally.rows if self._plan is None else len(self._plan)
        counts = RequestCounts(total, tally.completed, tally.failed)
        return msgspec.structs.replace(self.batch, request_counts=counts, usage=wire.usage_of(tally.tokens))

    def take(self, upstream: Upstream, elsewhere: bool) -> Work | None:
        if self._plan is None or self.stopping is not None:
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
            # It failed here: it goes on elsewhere, and what stands behind it gets its turn.
            self._again.rotate(-1)
        index = self._lanes.take(upstream.url)
        if index is None:
            return self._again.popleft() if self._again else None
        return Work(self, index, self.plan.size(index))

    def _packed(self, first: Work, upstream: Upstream) -> Work:
        """A row with as many of the next ones as fit into its request."""
        row = self._packable(first.index)
        if row is None:
            return first
        pack, indexes = packing.Pack(row), [first.index]
        while (index := self._lanes.take(upstream.url)) is not None:
            row = self._packable(index)
            if row is None or not pack.add(row):
                self._again.append(Work(self, index, self.plan.size(index)))
                break
            indexes.append(index)
            first.size += self.plan.size(index)
        if len(indexes) > 1:
            first.pack, first.packed = pack, tuple(indexes)
        return first

    def _packable(self, index: int) -> packing.Packable | None:
        """A row as it may be packed; None where it has to go alone, or cannot be read and so will say it then."""
        try:
            return packing.read(self.endpoint, self._line(index).body)
        except StorageError:
            return None

    def give_back(self, work: Work) -> None:
        self._again.append(work)

    def unpack(self, work: Work) -> None:
        share = work.upstream_seconds / len(work.packed)
        for index in work.packed:
            single = Work(self, index, self.plan.size(index))
            single.attempts, single.upstream_seconds = work.attempts, share
            self._again.append(single)

    def tokens(self, work: Work) -> int:
        if not work.packed:
            with contextlib.suppress(StorageError):
                return bodies.likely_tokens(self._line(work.index).body)
        return work.size // bodies.BYTES_PER_TOKEN

    def leaves(self, work: Work) -> None:
        if self._sent is None:
            return
        try:
            self._sent.leave(work.packed or (work.index,))
        except OSError as error:
            self._held_until = monotonic() + UNREADABLE_SECONDS
            self.problem = f"rows of {self.batch.id} cannot be noted as sent: {error.strerror}"
            raise StorageError(self.problem) from error

    def came_back(self, work: Work) -> None:
        if self._sent is not None:
            self._sent.take_back(work.packed or (work.index,))

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        self._inflight[task] = (work, upstream, began)

    def leave(self, task: asyncio.Task[None]) -> None:
        work, _, _ = self._inflight.pop(task)
        if self.stopping is not None:
            rows = work.packed or (work.index,)
            for index in rows:
                self._taken_back[index] = work.upstream_seconds / len(rows)
            self.changed.set()

    def upstream_seconds(self) -> float:
        """The batch's share of its upstreams' time up to now, rows in flight included."""
        out = sum(work.upstream_seconds + upstream.so_far(began) for work, upstream, began in self._inflight.values())
        return self.tally.upstream_seconds + out

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

    def _line(self, index: int) -> _Line:
        """A row's line. Raises StorageError where the file has another content than when it was checked, or none."""
        try:
            line = _decode_line(self.plan.read(self._input, index))
        except (OSError, *NO_JSON) as error:
            # To go through all the others at once would help nobody.
            self._held_until = monotonic() + UNREADABLE_SECONDS
            self.problem = f"row {index + 1:,} of the input file of {self.batch.id} cannot be read: {error}"
            raise StorageError(self.problem) from error
        self.problem = self._held_until = None
        return line

    def request_body(self, work: Work, upstream: Upstream) -> bytes:
        if work.pack is not None:
            body: bytes | msgspec.Raw = work.pack.body()
        else:
            line = self._line(work.index)
            work.custom_id, body = line.custom_id, line.body
        return bodies.prepare(
            body,
            endpoint=self.endpoint,
            vllm=upstream.is_vllm,
            model=upstream.first_model if self.batch.model == bodies.DEFAULT_MODEL else None,
            priority=BATCH_PRIORITY if upstream.takes_priority else None,
            tier=self._tier,
        )

    def refuse(self, work: Work, upstream: Upstream, fault: wire.LineError) -> None:
        assert work.custom_id is not None, "read with the row's body"
        line = error_line(work.custom_id, fault.code, fault.message, None)
        self._put(work.index, "error", line, NO_TOKENS, 0.0)

    def settle(self, work: Work, upstream: Upstream, reply: Reply, verdict: Verdict, latency: float) -> bool:
        succeeded = verdict.action is Action.KEEP and reply.status < 300
        if work.pack is None:
            self._settle(work, work.index, upstream, reply, verdict, latency, work.upstream_seconds)
            return True
        if not succeeded:
            return False
        try:
            answers = work.pack.split(reply.body)
            custom_ids = [self._line(index).custom_id for index in work.packed]
        except packing.PackError:
            upstream.takes_packs = False
            return False
        except StorageError:
            return False
        share = work.upstream_seconds / len(answers)
        for index, custom_id, answer in zip(work.packed, custom_ids, answers, strict=True):
            work.custom_id = custom_id
            alone = Reply(reply.end, reply.status, answer)
            self._settle(work, index, upstream, alone, verdict, latency, share)
        return True

    def _settle(
        self,
        work: Work,
        index: int,
        upstream: Upstream,
        reply: Reply,
        verdict: Verdict,
        latency: float,
        seconds: float,
    ) -> None:
        if self.stopping is not None and self.plan.done[index]:
            return
        if reply.status < 300 and verdict.action is Action.KEEP and self._sent is not None:
            self._sent.answered(index)
        orch = None
        if self.options.provenance:
            doubts = self._doubts(index)
            orch = wire.Provenance(upstream.url, round(latency * 1000), round(seconds, 6), work.attempts, doubts)
        custom_id = work.custom_id
        assert custom_id is not None, "read with the row's body, or with its pack"
        stats = upstream.stats
        stats.latencies.observe(latency)
        if verdict.action is Action.GIVE_UP:
            line = error_line(custom_id, "upstream_error", verdict.reason, orch)
        elif reply.status >= 300:
            line = answer_line(custom_id, reply.status, error_body(reply), orch)
        else:
            tokens = wire.answer_tokens(reply.body)
            stats.succeeded += 1
            stats.input_tokens += tokens[0]
            stats.cached_tokens += tokens[1]
            stats.output_tokens += tokens[2]
            self._put(index, "output", answer_line(custom_id, reply.status, reply.body, orch), tokens, seconds)
            return
        stats.failed += 1
        self._put(index, "error", line, NO_TOKENS, seconds)

    def end_rest(self, code: str, message: str) -> None:
        """Give every row without a result an error row. Raises StorageError; call it again then."""
        for index, done in enumerate(self.plan.done):
            if not done:
                # A row that was taken back has used the upstream all the same, and somebody pays for that.
                seconds, doubts = self._taken_back.get(index, 0.0), self._doubts(index)
                said = f"{message} {IN_DOUBT}" if doubts else message
                orch = None
                if self.options.provenance and (seconds or doubts):
                    orch = wire.Provenance("", 0, round(seconds, 6), max(1, doubts), doubts)
                line = error_line(self._line(index).custom_id, code, said, orch)
                self._put(index, "error", line, NO_TOKENS, seconds)

    def _doubts(self, index: int) -> int:
        """How often a row left for an upstream that bills, and no answer is known."""
        return 0 if self._sent is None else self._sent.doubts(index)

    def _put(self, index: int, kind: str, line: bytes, tokens: TokenCounts, seconds: float) -> None:
        self.plan.done[index] = 1
        self._writer.put(self._files[kind], line, Note(kind == "output", tokens, seconds))

    def _durable(self, notes: Sequence[Note]) -> None:
        self.tally.add(notes)
        if self.is_done:
            self.changed.set()
