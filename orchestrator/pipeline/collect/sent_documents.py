"""Document texts as sent in a job's requests, in which the quotes of answers are looked up."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.core.model import JobId, Span
from orchestrator.policy.grounding import SentDocument
from orchestrator.policy.sent_text import joined, sent_document
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard


class SentDocuments:
    """The documents of a job's rows, as they were sent."""

    def __init__(self, store: Store, home: Home, job_id: JobId) -> None:
        self._store = store
        self._path = home.requests(job_id)
        self._job_id = job_id

    def of(self, row: InShard) -> SentDocument | None:
        """Return a row's document, or None if its request is gone. A reduce row has its parts' documents, joined."""
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
