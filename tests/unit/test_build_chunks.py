"""Requests are recorded some at a time: few where they are long, so that a night of scans fits into memory."""

from __future__ import annotations

from orchestrator.core.model import RequestState
from orchestrator.pipeline.build.scan import CHUNK, CHUNK_BYTES, KEPT, BuiltRow, built_chunks
from orchestrator.policy.requests import Built
from orchestrator.store.records import Earlier
from tests.unit.test_requests import built


def test_a_chunk_ends_by_its_bytes_or_by_its_number() -> None:
    row = built().row
    long, short = (BuiltRow(Built(row, bytes(size))) for size in (CHUNK_BYTES // 2, 1))
    told = [len(chunk) for chunk in built_chunks([*[long] * 5, *[short] * (CHUNK + 1)])]
    assert told == [2, 2, CHUNK, 2]
    assert list(built_chunks([])) == []


def test_documents_that_were_not_read_are_recorded_more_at_a_time() -> None:
    read = BuiltRow(built())
    row = read.built.row
    unread = BuiltRow(
        Built(row, b""), Earlier(row.custom_id, row.fingerprint, RequestState.SUCCEEDED, None, "j-1", ())
    )
    told = [len(chunk) for chunk in built_chunks([*[unread] * KEPT, *[unread] * CHUNK, *[read] * (CHUNK + 1)])]
    assert told == [KEPT, 2 * CHUNK, 1]
