"""Results of a running job so far: collected rows, and rows that its batches have finished."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from orchestrator.core.model import FinishedRow, Job, Outcome, RequestState
from orchestrator.core.shards import Shard, ShardState
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.collect.sent_documents import SentDocuments
from orchestrator.pipeline.finish import merge
from orchestrator.pipeline.lost_answers import KINDS
from orchestrator.policy import results
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.settings.home import Home
from orchestrator.store import Store

OpenHandle = Callable[[str], BackendHandle | None]
"""Opens a backend. Returns None if the backend cannot show results, at all or yet."""
PREVIEW = "#preview"
"""Suffix of the shard id in the paths of copies of a running batch's results."""


@contextmanager
def partial_lines(
    store: Store, home: Home, job: Job, checks: Mapping[str, AnswerCheck], handles: OpenHandle, *, style: str,
    with_failed: bool = True,
) -> Iterator[Iterator[bytes]]:  # fmt: skip
    """Yield the merged lines of rows that already have a result, in input order. The store is not changed.

    Without `with_failed`, rows that failed in a running batch are left out: they may be asked again.
    """
    with tempfile.TemporaryDirectory(prefix="orch-partial-") as name:
        folder = Path(name)
        found: dict[int, tuple[Shard, Outcome, BackendHandle]] = {}
        for shard in store.shards.of_job(job.id):
            if shard.state is ShardState.SUBMITTED and (handle := handles(shard.backend)) is not None:
                for seq, answer in _of_shard(store, home, shard, handle, checks, folder):
                    if with_failed or answer[1].state is RequestState.SUCCEEDED:
                        found[seq] = answer

        def locate(shard_id: str, kind: str) -> Path:
            # A row that is settled meanwhile has another offset in the collected file, so the copy needs its own key.
            return folder / f"{shard_id}.{kind}" if shard_id.endswith(PREVIEW) else home.results(shard_id, kind)

        def rows() -> Iterator[FinishedRow]:
            for row in store.rows.finished(job.id):
                yield _with(row, *found[row.seq]) if row.seq in found and not row.state.is_final else row

        yield merge.lines(locate, rows(), checks, style=style, partial=True)


def _of_shard(
    store: Store, home: Home, shard: Shard, handle: BackendHandle, checks: Mapping[str, AnswerCheck], folder: Path
) -> Iterator[tuple[int, tuple[Shard, Outcome, BackendHandle]]]:
    assert shard.batch_id is not None
    sent = SentDocuments(store, home, shard.job_id)
    rows = {row.custom_id: row for row in store.rows.of_shard(shard.id)}
    for kind in KINDS:
        path = folder / f"{shard.id}{PREVIEW}.{kind}"
        if not handle.api.partial(shard.batch_id, kind, path):
            continue
        for line in results.read(path):
            row = rows.get(line.line.custom_id or "") if line.line is not None else None
            if row is None:
                continue
            outcome = results.outcome(row.seq, kind, line, checks.get(row.task), sent=functools.partial(sent.of, row))
            if isinstance(outcome, Outcome):
                yield row.seq, (shard, outcome, handle)


def _with(row: FinishedRow, shard: Shard, outcome: Outcome, handle: BackendHandle) -> FinishedRow:
    assert outcome.kind is not None
    assert outcome.span is not None
    return replace(
        row,
        state=outcome.state,
        result=(f"{shard.id}{PREVIEW}", outcome.kind, outcome.span),
        answered_by=outcome.model,
        upstream=outcome.upstream,
        latency_ms=outcome.latency_ms,
        usage=outcome.usage,
        cost=handle.price.of_row(shard.model, outcome, outcome.usage).cost,
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        quotes=outcome.quotes,
        backend=shard.backend,
        batch_id=shard.batch_id,
    )
