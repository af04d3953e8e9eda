"""Batch operations at a provider with its own request format.

A row is not sent if one of its fields has no counterpart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from orchestrator.backends import BatchOrder, Download, Intent, RemoteBatch, Sighting
from orchestrator.backends.api import ApiAnswer, BatchAPI, answer_of
from orchestrator.backends.batches import ApiBatches
from orchestrator.backends.chat_rows import Translate, translated_rows
from orchestrator.backends.openai_shape import unsent_row
from orchestrator.backends.profiles import Profile
from orchestrator.backends.received_files import keep
from orchestrator.core.batch_api import BatchStatus
from orchestrator.core.errors import BackendRefused
from orchestrator.policy.batch_errors import TOO_FEW_ROWS
from orchestrator.policy.quota import few_rows

NOTHING_SENT = "refused:"
"""Prefix of an upload's id if none of its rows could be translated."""


def nothing_sent(name: str) -> ApiAnswer:
    """Return the answer to an upload if none of its rows could be translated."""
    told = {"id": f"{NOTHING_SENT}{name}", "filename": name}
    return answer_of(told)


class TranslatedBatches(ApiBatches):
    """Batch operations at a provider with its own request format.

    A row that cannot be translated is not sent; its error line follows the results. If no row can be translated, no
    batch is created. A substitute with the id `refused:SHARD` then counts as completed from the start.
    """

    def __init__(self, name: str, api: BatchAPI, profile: Profile, translate: Translate, **more: Any) -> None:
        super().__init__(name, api, profile, **more)
        self._translate = translate

    def upload(self, path: Path, name: str) -> str:
        """Upload a file. Raises BackendRefused if some of its rows can be sent, but fewer than the provider's
        minimum.
        """
        if (least := self._profile.limits.min_rows) > 1:
            counts = Counter[bool]()
            with path.open("rb") as source:
                for _, _, error in translated_rows(source, self._translate):
                    counts[error is None] += 1
                    if counts[True] == least:  # enough: the upload translates the remainder
                        break
            if counts[False] and 0 < counts[True] < least:
                why = f"{few_rows(least, counts[True])}: rows with a field without a counterpart are not sent"
                raise BackendRefused(f"{self._name}: {why}", status=None, code=TOO_FEW_ROWS)
        return super().upload(path, name)

    def create(self, order: BatchOrder) -> RemoteBatch:
        if order.input_file_id.startswith(NOTHING_SENT):
            return all_refused(order.shard, order.rows)
        return super().create(order)

    def find(self, intent: Intent) -> Sighting:
        if (intent.input_file_id or "").startswith(NOTHING_SENT):
            return Sighting(all_refused(intent.shard, intent.rows))
        return super().find(intent)

    def retrieve(self, batch_id: str) -> RemoteBatch | None:
        if batch_id.startswith(NOTHING_SENT):
            return all_refused(batch_id.removeprefix(NOTHING_SENT), None)
        return super().retrieve(batch_id)

    def cancel(self, batch_id: str) -> None:
        if not batch_id.startswith(NOTHING_SENT):
            super().cancel(batch_id)

    def size_of(self, file_id: str) -> int | None:
        return None if file_id.startswith(NOTHING_SENT) else super().size_of(file_id)

    def forget_file(self, file_id: str) -> None:
        if not file_id.startswith(NOTHING_SENT):
            super().forget_file(file_id)

    def download(self, file_id: str, path: Path, input_path: Path) -> Download:
        if not file_id.startswith(NOTHING_SENT):
            return super().download(file_id, path, input_path)
        return keep([b""], lambda _: self._beside(input_path), path, ())

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        yield from super()._read_lines(chunks, input_path)
        yield from self._beside(input_path)

    def _beside(self, input_path: Path) -> Iterator[bytes]:
        """Yield the result lines of rows that were not sent.

        An adopted batch may have no input file here.
        """
        with suppress(FileNotFoundError), input_path.open("rb") as source:
            for custom_id, _, error in translated_rows(source, self._translate):
                if error is not None:
                    yield json.dumps(unsent_row(custom_id, error)).encode()


def all_refused(shard: str, rows: int | None) -> RemoteBatch:
    """Return the substitute batch of a shard in which no row could be translated.

    Only the create knows the number of `rows`.
    """
    name = f"{NOTHING_SENT}{shard}"
    return RemoteBatch(
        name,
        BatchStatus.COMPLETED,
        failed=rows or 0,
        is_counted=rows is not None,
        output_file_id=name,
        shard=shard,
        rows=rows,
    )
