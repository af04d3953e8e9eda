"""Re-asks: an answer that fails its check goes back to its model in a new request that states the fault.

New lines are appended to the job's file before rows refer to them. A process killed in between leaves unused lines;
the same answers are then found and re-asked again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import BinaryIO

from orchestrator.core import batch_api
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Job, Outcome, Span
from orchestrator.core.shards import Shard
from orchestrator.pipeline.collect.appended_requests import append_requests
from orchestrator.policy import reask_lines
from orchestrator.policy.answer_text import text_of
from orchestrator.settings.home import Home
from orchestrator.settings.stored_spec import tasks_of
from orchestrator.store import Store
from orchestrator.store.records import InShard, Settled

_decode_result = json_decoder(batch_api.ResultLine).decode


def retries_of(job: Job) -> Mapping[str, int]:
    """Return the maximum number of re-asks of an answer, by task."""
    return {task.id: task.retries for task in tasks_of(job)}


def reask_rows(
    store: Store, home: Home, shard: Shard, failed: Sequence[tuple[InShard, Settled]], now: datetime
) -> None:
    """Book failed answers, and queue their rows with requests that state the fault. Raises JobFilesError."""
    if not failed:
        return
    spans = append_requests(home.requests(shard.job_id), _mended_lines(home, shard, failed))
    store.escalations.reask_rows(shard, [settled for _, settled in failed], spans, now)


def _mended_lines(home: Home, shard: Shard, failed: Sequence[tuple[InShard, Settled]]) -> Iterator[tuple[int, bytes]]:
    with home.requests(shard.job_id).open("rb") as requests:
        for row, settled in failed:
            outcome = settled.outcome
            original = _read(requests, row.first or row.span)
            answer = _answer(home, shard, outcome)
            yield row.seq, reask_lines.mended(original, answer, outcome.error_code or "", outcome.error_message or "")


def _read(file: BinaryIO, span: Span) -> bytes:
    file.seek(span.offset)
    return file.read(span.length)


def _answer(home: Home, shard: Shard, outcome: Outcome) -> str | None:
    assert outcome.span is not None, "an answer has a line"
    with home.results(shard.id, outcome.kind or "output").open("rb") as file:
        return text_of(_decode_result(_read(file, outcome.span)))
