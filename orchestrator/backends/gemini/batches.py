"""Gemini's batches: OpenAI's verbs, with rows that are not sent because a field has no counterpart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.backends import BatchOrder, Download, Intent, RemoteBatch, Sighting
from orchestrator.backends.files import keep
from orchestrator.backends.gemini.api import NOTHING_SENT
from orchestrator.backends.gemini.lines import refused_lines
from orchestrator.backends.openai.batches import OpenAIBatches
from orchestrator.core.batch_api import BatchStatus


class GeminiBatches(OpenAIBatches):
    """The verbs of a Batch API on Gemini's calls.

    A row that cannot be translated is not sent: its line stands behind the results. If no row can be translated, no
    batch is created: its id is `refused:` and the shard's, and it is completed from the start.
    """

    def create(self, order: BatchOrder) -> RemoteBatch:
        if order.input_file_id.startswith(NOTHING_SENT):
            return _all_refused(order.shard, order.rows)
        return super().create(order)

    def find(self, intent: Intent) -> Sighting:
        if (intent.input_file_id or "").startswith(NOTHING_SENT):
            return Sighting(_all_refused(intent.shard, intent.rows))
        return super().find(intent)

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        if batch_id.startswith(NOTHING_SENT):
            return _all_refused(batch_id.removeprefix(NOTHING_SENT), None)
        return super().retrieve(batch_id)

    def size_of(self, file_id: str) -> int | None:
        return None if file_id.startswith(NOTHING_SENT) else super().size_of(file_id)

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        if not file_id.startswith(NOTHING_SENT):
            return super().download(file_id, path, input_path)
        return keep([b""], lambda _: self._beside(input_path), path, ())

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        yield from super()._read_lines(chunks, input_path)
        yield from self._beside(input_path)

    def _beside(self, input_path: Path) -> Iterator[bytes]:
        with input_path.open("rb") as source:
            yield from refused_lines(source)


def _all_refused(shard: str, rows: int | None) -> RemoteBatch:
    """Return the batch of a shard without a row that could be translated."""
    name = f"{NOTHING_SENT}{shard}"
    return RemoteBatch(name, BatchStatus.COMPLETED, output_file_id=name, shard=shard, rows=rows)
