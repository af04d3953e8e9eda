"""Requests are recorded some at a time: few where they are long, so that a night of scans fits into memory."""

from __future__ import annotations

from orchestrator.pipeline.build.scan import CHUNK, CHUNK_BYTES, Made, made_chunks
from orchestrator.policy.requests import Built
from tests.unit.test_requests import built


def test_a_chunk_ends_by_its_bytes_or_by_its_number() -> None:
    row = built().row
    long, short = (Made(Built(row, bytes(size))) for size in (CHUNK_BYTES // 2, 1))
    told = [len(chunk) for chunk in made_chunks([*[long] * 5, *[short] * (CHUNK + 1)])]
    assert told == [2, 2, CHUNK, 2]
    assert list(made_chunks([])) == []
