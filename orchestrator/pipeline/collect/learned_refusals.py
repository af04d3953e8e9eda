"""Fields that models refuse, learned from the refusals in a batch, and rows that can be asked without them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from orchestrator.core.model import Job
from orchestrator.core.refused_fields import FieldFault, ProviderError, RefusedField, refused_field
from orchestrator.core.sanitize import shortened
from orchestrator.core.shards import Shard
from orchestrator.pipeline.backend_handles import BackendHandle
from orchestrator.pipeline.dialects import LineWriter, line_writer
from orchestrator.policy.results import RowRefusal
from orchestrator.policy.row_errors import classify
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.records import InShard
from orchestrator.store.refused_fields import LearnedField

MOST_WORDS = 500
_Words = tuple[str, int | None, str | None, str | None, str | None, str | None]


class LearnedRefusals:
    """Refusals of one shard's rows. Equal refusals of one task's rows are examined once."""

    def __init__(
        self, store: Store, home: Home, job: Job, shard: Shard, handle: BackendHandle, model: str, now: datetime
    ) -> None:
        self._store = store
        self._lines = home.requests(job.id)
        self._job = job
        self._shard = shard
        self._handle = handle
        self._model = model
        self._now = now
        self._fields: dict[_Words, RefusedField | None] = {}
        self._respelled: dict[tuple[str, str], bool] = {}
        self._sent = self._writer(self._known_until(shard.intended_at or shard.created_at))

    def field_of(self, row: InShard, refusal: RowRefusal) -> RefusedField | None:
        """Return the field that a refusal names in a row's request, or None."""
        key = row.task, refusal.status, refusal.code, refusal.type, refusal.param, refusal.message
        if key not in self._fields:
            error = ProviderError(refusal.status, refusal.code, refusal.type, refusal.param, refusal.message)
            self._fields[key] = refused_field(error, self._body(row, self._sent))
        return self._fields[key]

    def learn(self, row: InShard, refusal: RowRefusal, field: RefusedField) -> bool:
        """Record that a field is refused with any value. True if the row can be asked again without the field."""
        if field.fault is not FieldFault.FIELD:
            return False
        key = row.task, field.name
        if key not in self._respelled:
            verdict = classify(refusal.status, refusal.code, refusal.type, refusal.message, field)
            words = shortened(refusal.message or "", MOST_WORDS)
            self._store.refused_fields.put(
                LearnedField(
                    self._shard.backend, self._model, self._shard.endpoint, field.name,
                    shortened(refusal.code or verdict.code, MOST_WORDS), words, self._now,
                )
            )  # fmt: skip
            known = self._known_until(self._now) | {field.name}
            self._respelled[key] = self._body(row, self._writer(known)) != self._body(row, self._sent)
        return self._respelled[key]

    def _known_until(self, at: datetime) -> frozenset[str]:
        return self._store.refused_fields.of(self._shard.backend, self._model, self._shard.endpoint, at)

    def _writer(self, refused: frozenset[str]) -> LineWriter:
        return line_writer(self._job, self._handle.recipient, self._model, self._shard.endpoint, refused)

    def _body(self, row: InShard, writer: LineWriter) -> Mapping[str, Any]:
        try:
            with self._lines.open("rb") as file:
                file.seek(row.span.offset)
                line = writer.line(row.task, file.read(row.span.length))
            body = msgspec.json.decode(line)["body"]
        except (OSError, ValueError, TypeError, KeyError, msgspec.MsgspecError):
            return {}
        return body if isinstance(body, dict) else {}
