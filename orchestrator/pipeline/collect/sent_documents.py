"""A job's documents and token limits as they were sent. Quotes in answers are looked up in these documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from orchestrator.core import batch_api, request_lines
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import JobId, Span
from orchestrator.core.shards import ShardId
from orchestrator.policy import request_limits
from orchestrator.policy.grounding import SentDocument
from orchestrator.policy.sent_text import joined, sent_document
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard


class SentDocuments:
    def __init__(self, store: Store, home: Home, job_id: JobId) -> None:
        self._store = store
        self._path = home.requests(job_id)
        self._job_id = job_id

    def of(self, row: InShard) -> SentDocument | None:
        """Return a row's document, or None if its request is gone. A reduce row has the documents of its parts."""
        if row.text_at is not None:
            return self._read(row.span, row.text_at, row.part)
        if row.parts is None or row.part is not None:
            return None
        parts = self._store.stages.sent_parts(self._job_id, row.seq, row.parts)
        documents = [self._read(*part) for part in parts]
        return None if None in documents else joined([one for one in documents if one is not None])

    def _read(self, span: Span, text_at: str, part: int | None) -> SentDocument | None:
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(span.offset)
            return sent_document(file.read(span.length), text_at, part)
        return None


class _Asked(msgspec.Struct):
    custom_id: str
    url: str
    body: msgspec.Raw


_decode = json_decoder(_Asked).decode


class SentBounds:
    """Maximum tokens of each answer of a shard, as sent. The dialect may have lowered a row's own limit."""

    def __init__(self, home: Home, shard_id: ShardId) -> None:
        self._path = home.shard_input(shard_id)
        self._known: dict[str, int] | None = None

    def of(self, row: InShard) -> int | None:
        """Return a row's token limit, or None if it has no limit or its line is gone. The first call reads all
        lines.
        """
        if row.max_output is None:
            return None
        if self._known is None:
            self._known = dict(self._read())
        return self._known.get(row.custom_id)

    def _read(self) -> Iterator[tuple[str, int]]:
        with suppress(OSError, *batch_api.JSON_ERRORS), self._path.open("rb") as file:
            for _, _, line in request_lines.lines(file):
                asked = _decode(line)
                _, most = request_limits.bounds(asked.url, asked.body)
                if most is not None:
                    yield asked.custom_id, most
