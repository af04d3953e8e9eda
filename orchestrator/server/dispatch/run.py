"""A batch that is being worked on: which rows wait, which are done, and what its result files hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator import wire
from orchestrator.server.dispatch import results
from orchestrator.server.dispatch.fanout import Source, Work
from orchestrator.server.dispatch.plan import Plan
from orchestrator.server.dispatch.resultlines import answer_line, error_body, error_line
from orchestrator.server.dispatch.retry import Action, Verdict
from orchestrator.server.dispatch.upstreams import Reply, Upstream
from orchestrator.server.records import BatchRecord
from orchestrator.wire import Batch, BatchStatus, BatchUsage, RequestCounts, id_key

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
    """A batch's rows, its result files, and what has become of them. `batch` is as it was recorded last."""

    def __init__(self, record: BatchRecord, folder: Path) -> None:
        self.batch = record.batch
        self.options = record.options
        self.tenant = record.tenant
        self.folder = folder
        self.endpoint = record.batch.endpoint
        self._inflight: dict[asyncio.Task[None], tuple[Work, Upstream, float]] = {}
        self._taken_back: dict[int, float] = {}
        self.tally = Tally()
        self.changed = asyncio.Event()
        self.stopping: BatchStatus | None = None
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
                if kind == "error" and results.is_expired(row):
                    self.stopping = BatchStatus.EXPIRED
                body = row.response.body if row.response else wire.NO_BODY
                self.tally.add(
                    succeeded=kind == "output",
                    usage=wire.read_answer(body)[0] if kind == "output" else NO_USAGE,
                    seconds=row.orch.upstream_seconds if row.orch else 0.0,
                )
        return done

    def start(self, plan: Plan, input_path: Path, writer: results.Writer) -> None:
        """Take up the rows of a plan that are not done. Raises OSError, and then nothing is open."""
        self._writer = writer
        self._files = {}
        with contextlib.ExitStack() as opened:
            for kind in ("output", "error"):
                self._files[kind] = results.ResultFile(self.path(kind))
                opened.callback(self._files[kind].close)
            self._input = os.open(input_path, os.O_RDONLY)
            opened.pop_all()
        self._plan = plan

    def close(self) -> None:
        """Close the files; `start` may open them again."""
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

    def counted(self) -> Batch:
        """The batch with the counts and usage of its durable results."""
        if self.batch.status is BatchStatus.VALIDATING:
            return self.batch
        tally = self.tally
        total = tally.rows if self._plan is None else len(self._plan)
        counts = RequestCounts(total, tally.completed, tally.failed)
        return msgspec.structs.replace(self.batch, request_counts=counts, usage=tally.usage)

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

    def enter(self, task: asyncio.Task[None], work: Work, upstream: Upstream, began: float) -> None:
        self._inflight[task] = (work, upstream, began)

    def leave(self, task: asyncio.Task[None]) -> None:
        work, _, _ = self._inflight.pop(task)
        if self.stopping is not None:
            self._taken_back[work.index] = work.upstream_seconds
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
            if self.options.provenance
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
                # A row that was taken back has used the upstream all the same, and somebody pays for that.
                seconds = self._taken_back.get(index, 0.0)
                orch = wire.Provenance("", 0, round(seconds, 6), 1) if seconds and self.options.provenance else None
                self._put(index, "error", error_line(self._id(index), code, message, orch), NO_USAGE, seconds)

    def _id(self, index: int) -> str:
        return str(self._line(index).custom_id)

    def _put(self, index: int, kind: str, line: bytes, usage: BatchUsage, seconds: float) -> None:
        self.plan.done[index] = 1

        def durable() -> None:
            self.tally.add(succeeded=kind == "output", usage=usage, seconds=seconds)
            if self.is_done:
                self.changed.set()

        self._writer.put(self._files[kind], line, durable)
