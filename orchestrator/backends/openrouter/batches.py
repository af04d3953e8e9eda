"""OpenAI's verbs at OpenRouter: requests go out inline, and only the ids of its rows identify a batch.

A row's id has a tag of the shard and the digest of its line. So a batch that has ended shows its shard.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.backends import (
    BatchOrder,
    Intent,
    RemoteBatch,
    SentLines,
    Sighting,
    by_request,
    calls,
    inline_rows,
    lenient,
)
from orchestrator.backends.batches import InlineBatches
from orchestrator.backends.files import translated
from orchestrator.backends.listing import FURTHEST_OFF
from orchestrator.backends.openrouter.api import OpenRouterAPI
from orchestrator.backends.remote import remote_batch
from orchestrator.core import batch_api, request_lines
from orchestrator.core.errors import BackendError, BackendRefused, InputError, Uncertain
from orchestrator.core.json_decoders import json_decoder

_WINDOW = "24h"
_UNREAD = "the list shows a batch that cannot be read, such as one without an id; it may be the one that was made"


class _Line(msgspec.Struct):
    body: dict[str, msgspec.Raw]


_decode_line = json_decoder(_Line).decode


class OpenRouterBatches(InlineBatches):
    """The verbs on OpenRouter's calls."""

    _api: OpenRouterAPI

    def upload(self, path: Path, name: str) -> str:
        """Return the id of an input file, which goes out with the create. Raises InputError for an invalid line."""
        with inline_rows.opened(path) as source:
            for number, (_, _, raw) in enumerate(request_lines.lines(source), 1):
                _fields(raw, path, number)
        return inline_rows.file_id(path, self._root)

    def create(self, order: BatchOrder) -> RemoteBatch:
        path = inline_rows.path_of(order.input_file_id, self._root)
        with (
            inline_rows.opened(path) as source,
            translated(source, _body(order, path, source)) as body,
            self._translated("create a batch", calls.transfer(), creating=True),
        ):
            return remote_batch(self._api.submit(body).json())

    def find(self, intent: Intent) -> Sighting:
        """Look for the batch by its time and number of rows; the ids of its results tell whether it is ours."""
        earliest, unread = intent.since - FURTHEST_OFF, list[object]()

        def may_be(batch: RemoteBatch) -> bool:
            is_old = batch.created_at is not None and batch.created_at < earliest
            return not is_old and batch.rows in (None, intent.rows) and intent.known(batch.id) is None

        listed, undecided, is_blank = self._search(may_be, intent.since, unread, is_one=False)
        found, tag = list[RemoteBatch](), inline_rows.shard_tag(intent.shard)
        for batch in listed:
            if not batch.status.is_final:
                undecided = f"batch {batch.id} matches in rows and time; its results will show if it is ours"
            elif batch.output_file_id is not None and (tags := self._tags_in(batch)) != frozenset():
                if tags is None:
                    undecided = f"batch {batch.id} matches in rows and time, and its results cannot be read"
                elif tag in tags:
                    found.append(batch)
        if found:
            return Sighting(found[0], doubles=tuple(found[1:]))
        return Sighting(undecided=undecided or (_UNREAD if any(unread) else None), is_blank=is_blank)

    def _tags_in(self, batch: RemoteBatch) -> frozenset[str] | None:
        """Return the tags of a batch's row ids; None if its results cannot be read."""
        ids = self._row_ids(batch)
        return None if ids is None else frozenset(filter(None, map(inline_rows.tag_of, ids)))

    def _row_ids(self, batch: RemoteBatch) -> frozenset[str] | None:
        try:
            return None if batch.output_file_id is None else self._ids_in(batch.output_file_id)
        except BackendRefused:
            raise
        except BackendError:
            return None

    def untold(self, since: datetime) -> list[RemoteBatch]:
        unread = list[object]()
        found, undecided, _ = self._search(lambda _: True, since, unread, is_one=False)
        if undecided is not None or any(unread):
            raise Uncertain(f"{self._name}: {undecided or _UNREAD}")
        return found

    def input_lines(self, batch: RemoteBatch) -> SentLines | None:
        """See `Backend`. The ids of its results have the digests."""
        ids = self._row_ids(batch)
        if ids is None:
            return None
        return by_request((one, digest) for one in ids if (digest := inline_rows.digest_of(one)) is not None)

    def forget_file(self, file_id: str) -> None:
        """Keep a batch's results: only the batch itself could be deleted, and would be missing from lists."""

    def cancel(self, batch_id: str) -> None:
        """Raises BackendRefused for a batch that is not over: OpenRouter has no call to end one."""
        self._refuse_cancel(batch_id, "OpenRouter")

    def _read_lines(self, chunks: Iterable[bytes], input_path: Path) -> Iterator[bytes]:
        with inline_rows.opened(input_path) as source:
            ids = inline_rows.Ids(source, "")
            for line in super()._read_lines(chunks, input_path):
                row = lenient.decode_object(line)
                if row is not None and isinstance(theirs := row.get("custom_id"), str):
                    row["custom_id"] = ids.ours(theirs)
                    line = json.dumps(row).encode()
                yield line


def _fields(raw: bytes, path: Path, number: int) -> dict[str, msgspec.Raw]:
    """Return the fields of a request without its model, which is a field of the batch. Raises InputError."""
    try:
        body = _decode_line(raw).body
    except batch_api.JSON_ERRORS as error:
        raise InputError(f"is not a request: {error}", file=path, line=number) from None
    return {name: value for name, value in body.items() if name != "model"}


def _body(order: BatchOrder, path: Path, source: Any) -> Iterator[bytes]:
    """Yield the body of a create; every other field has to stand before `requests`."""
    head = {"endpoint": order.endpoint, "model": order.model, "completion_window": _WINDOW}
    yield msgspec.json.encode(head)[:-1] + b',"requests":['
    tag, between = inline_rows.shard_tag(order.shard), b""
    for number, (_, _, raw) in enumerate(request_lines.lines(source), 1):
        row = inline_rows.row_id(tag, number, raw)
        yield between + msgspec.json.encode({"custom_id": row, "body": _fields(raw, path, number)})
        between = b",\n"
    yield b"]}"
